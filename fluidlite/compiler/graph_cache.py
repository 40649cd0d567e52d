"""Graphs of programs, with and without passes: a bounded cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fluidlite.base.collection import paused
from fluidlite.base.errors import DeviceUnavailable, PlaceError
from fluidlite.base.lru_cache import CacheInfo, LRUCache
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice_cache import generation
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.program import Program

if TYPE_CHECKING:  # imported by who runs passes: they are a fifth of the time of the import
    from fluidlite.compiler.passes import PassList

MOST_GRAPHS = 64
"""Graphs that are kept."""


class GraphCache:
    """Graphs by their program and what is fetched of it.

    A program is known by its serial and by how often it was edited, which is its fingerprint: a clone has its own.

    ``make_passes``: returns the passes; default: those of transformers.
    """

    def __init__(self, place: Place, make_passes: Callable[[], PassList] | None = None) -> None:
        self._place = place
        self._make_passes = make_passes
        self._graphs: LRUCache[Graph] = LRUCache(MOST_GRAPHS, "graphs", 64 << 20)

    def get(self, program: Program, fetches: tuple[str, ...], preferences: Policy, passes: bool = True) -> Graph:
        """Return the graph that computes the fetches.

        ``preferences``: of who runs it: which kernels there will be decides what passes do.
        ``passes``: after the passes; False: as the program is written.
        Raises ProgramError if a pass breaks it; the pass is named.
        """
        known = (program.serial, program.edits, fetches)
        # the graph keeps its program alive: the serial is the key
        if not passes:
            return self._graphs.get(known, lambda: Graph(program, fetches, self._place, preferences).finished())
        key = (*known, preferences, generation())
        return self._graphs.get(key, lambda: self._make(program, fetches, preferences))

    def _make(self, program: Program, fetches: tuple[str, ...], preferences: Policy) -> Graph:
        graph = Graph(program, fetches, self._place, preferences)
        try:
            check_places(program)
        except (PlaceError, DeviceUnavailable):  # the planner says so, if a fetch needs it
            return graph.finished()
        if graph.closed:
            from fluidlite.compiler.passes import default_passes

            with paused():
                (self._make_passes or default_passes)().run(graph)
        return graph.finished()

    def info(self) -> CacheInfo:
        return self._graphs.info()

    def clear(self) -> None:
        self._graphs.clear()


def check_places(program: Program) -> None:
    """See that each ``device_guard`` names a place that can be used, before passes ask what it can.

    Raises PlaceError or DeviceUnavailable with the operator, and the user's line.
    """
    for op in program.global_block().ops:
        where = op.hints.get("op_device")
        if where:
            try:
                devices.unit(where)
            except (PlaceError, DeviceUnavailable) as exc:
                raise type(exc)(f"{op}: {exc}") from None
