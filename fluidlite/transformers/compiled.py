"""Programs after passes, for those who run many: a bounded cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from fluidlite.base.errors import DeviceUnavailable, PlaceError
from fluidlite.framework.choose import generation
from fluidlite.framework.program import Program
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place
from fluidlite.transformers.passes import PassList, default_passes
from fluidlite.transformers.values import Graph

MOST_PROGRAMS = 64
"""Programs that are kept."""

Compiled = tuple[Program, tuple[str, ...]]


class CompiledPrograms:
    """Programs after the passes, by what is fetched of them.

    A program is known by its serial and by how often it was edited, which is its fingerprint: a clone has its own.
    """

    def __init__(self, make_passes: Callable[[], PassList] = default_passes, place: Place | None = None) -> None:
        self._make_passes = make_passes
        self._place = place
        self._programs: OrderedDict[Any, tuple[Program, Compiled]] = OrderedDict()

    def get(self, program: Program, fetches: tuple[str, ...]) -> Compiled:
        """Return the program that computes the fetches, and the names that they have there.

        Raises
        ------
        ProgramError
            If a pass breaks it; the pass is named.
        """
        sizes = tuple(len(block.ops) for block in program.blocks)
        key = (program.serial, program.edits, sizes, program.random_seed, fetches, generation())
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = program, self._make(program, fetches)  # kept alive: its serial is the key
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        else:
            self._programs.move_to_end(key)
        return found[1]

    def _make(self, program: Program, fetches: tuple[str, ...]) -> Compiled:
        if not Graph.supports(program) or not _known_places(program):
            return program, fetches
        graph = Graph(program, fetches, self._place)
        self._make_passes().run(graph)
        made, names = graph.to_program()
        return made, tuple(names)

    def clear(self) -> None:
        """Forget all."""
        self._programs.clear()


def _known_places(program: Program) -> bool:
    """Whether each ``device_guard`` names a place that can be used; if not, the planner says so, with the line."""
    try:
        for op in program.global_block().ops:
            where = op.hints.get("op_device")
            if where:
                devices.unit(where)
    except (PlaceError, DeviceUnavailable):
        return False
    return True
