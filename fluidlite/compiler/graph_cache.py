"""The graph cache: an LRU cache of graphs of programs, with and without passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fluidlite.base.collection import gc_paused
from fluidlite.base.errors import DeviceUnavailable, PlaceError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice_cache import registry_versions
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.program import Program

if TYPE_CHECKING:  # imported by the code that runs passes: they take a fifth of the import time
    from fluidlite.compiler.passes import PassList

MAX_GRAPHS = 64
"""Maximum number of graphs in one cache."""


class GraphCache:
    """Caches graphs by program, fetches, preferences and the generation of the registries.

    A program is identified by its serial and its number of edits; a clone has another serial.

    ``make_passes``: returns the passes; default: those of transformers.
    """

    def __init__(self, place: Place, make_passes: Callable[[], PassList] | None = None) -> None:
        self._place = place
        self._make_passes = make_passes
        self.graphs: LRUCache[Graph] = LRUCache(MAX_GRAPHS, "graphs", 64 << 20)

    def get(self, program: Program, fetches: tuple[str, ...], preferences: Policy, passes: bool = True) -> Graph:
        """Return the graph that computes the fetches.

        ``preferences``: preferences of the runner; passes depend on the kernels that these select.
        ``passes``: run the passes on the graph.
        Raises ProgramError if a pass breaks it; the pass is named.
        """
        program_key = (program.serial, program.edits, fetches)
        # the graph keeps its program alive: the serial is the key
        if not passes:
            return self.graphs.get(program_key, lambda: Graph(program, fetches, self._place, preferences).finished())
        key = (*program_key, preferences, registry_versions())
        return self.graphs.get(key, lambda: self._make(program, fetches, preferences))

    def _make(self, program: Program, fetches: tuple[str, ...], preferences: Policy) -> Graph:
        graph = Graph(program, fetches, self._place, preferences)
        try:
            check_places(program)
        except (PlaceError, DeviceUnavailable):  # the planner raises it, if a fetch needs the place
            return graph.finished()
        if graph.closed:
            from fluidlite.compiler.passes import default_passes

            with gc_paused():
                (self._make_passes or default_passes)().run(graph)
        return graph.finished()


def check_places(program: Program) -> None:
    """Check that each ``device_guard`` names a usable place, before passes query its kernels.

    Raises PlaceError or DeviceUnavailable with the operator, and the user's line.
    """
    for op in program.global_block().ops:
        device = op.hints.get("op_device")
        if device:
            try:
                devices.unit(device)
            except (PlaceError, DeviceUnavailable) as exc:
                raise type(exc)(f"{op}: {exc}") from None
