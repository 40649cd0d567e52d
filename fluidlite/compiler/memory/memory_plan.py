"""The memory plan: the offset of each temporary value of a computation in an arena, and its live range."""

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
from fluidlite.compiler.memory.offset_allocator import BufferRequest, allocate_offsets, lower_bound
from fluidlite.compiler.memory.plot import memory_plan_svg
from fluidlite.compiler.planning.plan import Plan, step_name
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place


@dataclass(frozen=True)
class PlannedBuffer:
    """A range of bytes in an arena, for a range of steps.

    Attributes
    ----------
    names : tuple of str
        Its values: several, if they are in-place results or views of each other.
    kind : str
        "value", "feed", "state" (a new value that is copied to state after its operator), or "workspace".
    place : Place
    nbytes, offset : int
    start, end : int
        The first and the last step that use it; -1 is before the first step, the number of steps after the last.
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
        """Its names, joined."""
        return " = ".join(self.names) if self.names else f"workspace of step {self.start}"


def _requests(live_ranges: Sequence[LiveRange]) -> list[BufferRequest]:
    return [(live_range.nbytes, live_range.start, live_range.end) for live_range in live_ranges]


class MemoryPlan:
    """Buffers with their offsets in arenas, one arena for each place.

    Attributes
    ----------
    arenas : dict of Place to int
        Bytes of each arena.
    """

    def __init__(self, plan: Plan, live_ranges: LiveRanges) -> None:
        self._plan, self._views = plan, live_ranges.views
        self.arenas: dict[Place, int] = {}
        self.at: dict[LiveRange, int] = {}
        for place in dict.fromkeys([live_range.place for live_range in live_ranges.planned]):
            mine = [live_range for live_range in live_ranges.planned if live_range.place == place]
            offsets, self.arenas[place] = allocate_offsets(_requests(mine), devices.unit(place).info.alignment)
            self.at.update(zip(mine, offsets, strict=True))
        self._live_ranges = live_ranges.planned

    @cached_property
    def buffers(self) -> tuple[PlannedBuffer, ...]:
        """All buffers, ordered by start."""
        return tuple(
            PlannedBuffer(tuple(r.keys), r.kind, r.place, r.nbytes, self.at[r], r.start, r.end)
            for r in self._live_ranges
        )

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """The names of the steps, in order."""
        return tuple(map(step_name, self._plan.steps))

    @property
    def planned(self) -> int:
        """Bytes of all arenas."""
        return sum(self.arenas.values())

    @property
    def lower_bound(self) -> int:
        """Maximum over steps of the bytes that are live: no plan needs less."""
        return sum(lower_bound(_requests([r for r in self._live_ranges if r.place == place])) for place in self.arenas)

    @property
    def unshared(self) -> int:
        """Bytes of all buffers, without reuse of memory."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def live(self, step: int) -> tuple[PlannedBuffer, ...]:
        """Return the buffers that are live at a step."""
        return tuple(buffer for buffer in self.buffers if buffer.start <= step <= buffer.end)

    def peak_step(self, place: Place) -> int:
        """Return the first step at which the live bytes of a place are at their maximum."""
        mine = [buffer for buffer in self.buffers if buffer.place == place]
        starts = sorted({max(buffer.start, 0) for buffer in mine})  # the live bytes rise only at starts
        return max(starts, key=lambda step: sum(b.nbytes for b in mine if b.start <= step <= b.end), default=0)

    def verify(self) -> None:
        """Prove that no value is overwritten before its last reader, from steps and offsets alone.

        Raises
        ------
        ProgramError
            With the step, the values and the bytes.
        """
        MemoryVerifier(self._plan, self.buffers, self.arenas, self._views).verify()

    def data(self) -> Mapping[str, Any]:
        """Return the plan as plain dicts."""
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
        """Return a table of the buffers and the summary."""
        heads = ("bytes", "offset", "steps", "kind", "name")
        rows = [(f"{b.nbytes:,}", f"{b.offset:,}", f"{b.start} to {b.end}", b.kind, b.name) for b in self.buffers]
        return "\n".join([*table([heads, *rows], range(3)), self.summary()])

    def summary(self) -> str:
        """Return one line: planned bytes, lower bound, and bytes without reuse."""
        places = ", ".join(f"{nbytes:,} on {place}" for place, nbytes in self.arenas.items()) or "0"
        return (
            f"{len(self.buffers)} buffers: planned {places} bytes; at least {self.lower_bound:,} live at once; "
            f"unshared {self.unshared:,}"
        )

    def svg(self) -> str:
        """Return a plot as SVG: steps on the x axis, bytes of the arena on the y axis."""
        return memory_plan_svg(self)

    def save(self, path: str | Path) -> None:
        """Write the plot to a file."""
        write_text(path, self.svg(), "the picture")

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<MemoryPlan of {self.summary()}>"
