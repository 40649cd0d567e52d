"""The memory plan: which bytes of an arena each temporary value of a computation has, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fluidlite.base.text_file import write_text
from fluidlite.base.text_table import table
from fluidlite.compiler.memory.live_ranges import LiveRange, LiveRanges
from fluidlite.compiler.memory.memory_verifier import MemoryVerifier
from fluidlite.compiler.memory.offset_allocator import Span, best, lower_bound
from fluidlite.compiler.memory.plot import picture
from fluidlite.compiler.planning.plan import Plan, step_name
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place


@dataclass(frozen=True)
class Buffer:
    """A piece of an arena.

    Attributes
    ----------
    names : tuple of str
        The values that have it: several, where one is written over another or is a view of it.
    kind : str
        "value", "feed", "state" (what becomes state when its operator is done), or "workspace".
    place : Place
    nbytes, offset : int
    start, end : int
        The first and the last step that touch it; -1 is before the first step, the number of steps after the last.
    """

    names: tuple[str, ...]
    kind: str
    place: Place
    nbytes: int
    offset: int
    start: int
    end: int

    @property
    def name(self) -> str:
        """Its names in one text."""
        return " = ".join(self.names) if self.names else f"workspace of step {self.start}"


def _spans(lives: Sequence[LiveRange]) -> list[Span]:
    return [(life.nbytes, life.start, life.end) for life in lives]


class MemoryPlan:
    """Buffers with offsets; one arena a place.

    Attributes
    ----------
    arenas : dict of Place to int
        Bytes of each arena.
    """

    def __init__(self, plan: Plan, live_ranges: LiveRanges) -> None:
        self._plan, self._views = plan, live_ranges.views
        self.arenas: dict[Place, int] = {}
        self.at: dict[LiveRange, int] = {}
        for place in dict.fromkeys([life.place for life in live_ranges.lives]):
            mine = [life for life in live_ranges.lives if life.place == place]
            offsets, self.arenas[place] = best(_spans(mine), devices.unit(place).info.alignment)
            self.at.update(zip(mine, offsets, strict=True))
        self._lives = live_ranges.lives

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """In the order in which they begin."""
        return tuple(
            Buffer(tuple(life.keys), life.kind, life.place, life.nbytes, self.at[life], life.start, life.end)
            for life in self._lives
        )

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """What runs, in order."""
        return tuple(map(step_name, self._plan.steps))

    @property
    def planned(self) -> int:
        """Bytes of all arenas."""
        return sum(self.arenas.values())

    @property
    def lower_bound(self) -> int:
        """The largest set of buffers that live at one step, in bytes: no plan can do with less."""
        return sum(lower_bound(_spans([life for life in self._lives if life.place == place])) for place in self.arenas)

    @property
    def unshared(self) -> int:
        """Bytes of all buffers, as if none had the memory of another."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def live(self, step: int) -> tuple[Buffer, ...]:
        """The buffers that are in use at a step."""
        return tuple(buffer for buffer in self.buffers if buffer.start <= step <= buffer.end)

    def fullest(self, place: Place) -> int:
        """The first of the steps at which most bytes of a place are in use."""
        mine = [buffer for buffer in self.buffers if buffer.place == place]
        starts = sorted({max(buffer.start, 0) for buffer in mine})  # between them it only becomes less
        return max(starts, key=lambda step: sum(b.nbytes for b in mine if b.start <= step <= b.end), default=0)

    def verify(self) -> None:
        """Prove that no value is written over before its last reader, by a walk that knows only steps and offsets.

        Raises
        ------
        ProgramError
            With the step, the values and the bytes.
        """
        MemoryVerifier(self._plan, self.buffers, self.arenas, self._views).verify()

    def data(self) -> Mapping[str, Any]:
        """All of it as plain dicts."""
        return {
            "planned": self.planned,
            "lower_bound": self.lower_bound,
            "unshared": self.unshared,
            "arenas": {str(place): nbytes for place, nbytes in self.arenas.items()},
            "steps": list(self.steps),
            "buffers": [
                {
                    "names": list(b.names),
                    "kind": b.kind,
                    "place": str(b.place),
                    "bytes": b.nbytes,
                    "offset": b.offset,
                    "start": b.start,
                    "end": b.end,
                }
                for b in self.buffers
            ],
        }

    def text(self) -> str:
        """A table of the buffers, and a line of sums."""
        heads = ("bytes", "offset", "steps", "kind", "name")
        rows = [(f"{b.nbytes:,}", f"{b.offset:,}", f"{b.start} to {b.end}", b.kind, b.name) for b in self.buffers]
        return "\n".join([*table([heads, *rows], range(3)), self.summary()])

    def summary(self) -> str:
        """One line: bytes planned, the lower bound, and what the buffers take without sharing."""
        places = ", ".join(f"{nbytes:,} on {place}" for place, nbytes in self.arenas.items()) or "0"
        return (
            f"{len(self.buffers)} buffers: planned {places} bytes; at least {self.lower_bound:,} live at once; "
            f"unshared {self.unshared:,}"
        )

    def svg(self) -> str:
        """A picture: steps to the right, bytes of the arena upwards."""
        return picture(self)

    def save(self, path: str | Path) -> None:
        """Write the picture to a file."""
        write_text(path, self.svg(), "the picture")

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<MemoryPlan of {self.summary()}>"
