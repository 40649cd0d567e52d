"""Programs after passes, for those who run many: a bounded cache."""

from __future__ import annotations

from collections.abc import Callable

from fluidlite.base.bounded import Bounded, CacheInfo
from fluidlite.base.errors import DeviceUnavailable, PlaceError
from fluidlite.framework.choose import generation
from fluidlite.framework.planner import needed_operators
from fluidlite.framework.policy import Policy
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
        self._programs: Bounded[tuple[Program, Compiled]] = Bounded(MOST_PROGRAMS, "programs", 64 << 20)

    def get(self, program: Program, fetches: tuple[str, ...], preferences: Policy) -> Compiled:
        """Return the program that computes the fetches, and the names that they have there.

        Parameters
        ----------
        preferences : Policy
            Of who runs it: which kernels there will be decides what passes do.

        Raises
        ------
        ProgramError
            If a pass breaks it; the pass is named.
        """
        sizes = tuple(len(block.ops) for block in program.blocks)
        key = (program.serial, program.edits, sizes, program.random_seed, fetches, preferences, generation())
        # the program is kept alive: its serial is the key
        found = self._programs.get(key, lambda: (program, self._make(program, fetches, preferences)))
        return found[1]

    def _make(self, program: Program, fetches: tuple[str, ...], preferences: Policy) -> Compiled:
        if not Graph.supports(program):
            return program, fetches
        try:
            check_places(program)
        except (PlaceError, DeviceUnavailable):  # the planner says so, if a fetch needs it
            return program, fetches
        graph = Graph(program, fetches, self._place, preferences)
        self._make_passes().run(graph)
        made, names = graph.to_program()
        block = program.global_block()
        made.pruned = len(block.ops) - len(needed_operators(block, fetches))
        return made, tuple(names)

    def info(self) -> CacheInfo:
        """What the cache tells of itself."""
        return self._programs.info()

    def clear(self) -> None:
        """Forget all."""
        self._programs.clear()


def check_places(program: Program) -> None:
    """See that each ``device_guard`` names a place that can be used, before passes ask what it can.

    Raises
    ------
    PlaceError, DeviceUnavailable
        With the operator, and the user's line.
    """
    for op in program.global_block().ops:
        where = op.hints.get("op_device")
        if where:
            try:
                devices.unit(where)
            except (PlaceError, DeviceUnavailable) as exc:
                raise type(exc)(f"{op}: {exc}") from None
