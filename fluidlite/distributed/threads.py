"""A group whose members are threads of one process: for several places of a process, and for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from fluidlite.base.errors import CollectiveError
from fluidlite.base.fork import new_lock
from fluidlite.distributed.groups import REDUCTIONS, Array, Group, check_reduction
from fluidlite.platform.device_context import Event

TIMEOUT_SECONDS = 600.0
Combine = Callable[[Sequence[Array]], Sequence[Array]]


class _Collective:
    """One collective operation: the members' arrays, and the results once all have arrived."""

    def __init__(self, size: int) -> None:
        self.arrays: list[Array | None] = [None] * size
        self.descriptions: list[str] = [""] * size
        self.results: Sequence[Array] = ()
        self.results_read = 0
        self.finished = threading.Event()


class Rendezvous:
    """The rendezvous of the members of a thread group.

    ``members``: one for each thread.
    """

    def __init__(self, size: int) -> None:
        self._lock = new_lock()
        self._collectives: dict[int, _Collective] = {}
        self._broken: str = ""
        self.size = size
        self.members = [ThreadGroup(self, rank) for rank in range(size)]

    def fail(self, rank: int, error: BaseException) -> None:
        """Record that a member failed: members that wait for it, now or later, raise CollectiveError."""
        with self._lock:
            self._broken = self._broken or f"member {rank} of {self.size} ended by {type(error).__name__}: {error}"
            for collective in self._collectives.values():
                collective.finished.set()

    def arrive(self, rank: int, number: int, what: str, array: Array, combine: Combine) -> _Collective:
        """Bring an array to the ``number``-th operation; the last member to arrive computes the results."""
        with self._lock:
            if self._broken:
                raise CollectiveError(self._broken)
            collective = self._collectives.setdefault(number, _Collective(self.size))
            collective.arrays[rank], collective.descriptions[rank] = array, what
            arrived = [item for item in collective.arrays if item is not None]
            if len(arrived) < self.size:
                return collective
            if len(set(collective.descriptions)) > 1:
                self._broken = f"the members do different operations: {', '.join(sorted(set(collective.descriptions)))}"
            else:
                collective.results = combine(arrived)
            collective.finished.set()
        return collective

    def result(self, rank: int, number: int, collective: _Collective) -> Array:
        if not collective.finished.wait(TIMEOUT_SECONDS):
            raise CollectiveError(f"member {rank} of {self.size} waited {TIMEOUT_SECONDS:.0f} s, and not all came")
        if not collective.results:
            raise CollectiveError(self._broken)
        with self._lock:
            collective.results_read += 1
            if collective.results_read == self.size:
                self._collectives.pop(number, None)
        return collective.results[rank]


class _StartedWork:
    """A started operation; ``wait`` copies the result into the array."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def wait(self) -> None:
        self._finish()


class ThreadGroup(Group):
    """One member of a :class:`Rendezvous`."""

    reduces_in_place = False

    def __init__(self, rendezvous: Rendezvous, rank: int) -> None:
        self._rendezvous, self.rank, self.size = rendezvous, rank, rendezvous.size
        self._number = 0

    def _arrive(self, what: str, array: Array, combine: Combine) -> Callable[[], Array]:
        number, self._number = self._number, self._number + 1
        collective = self._rendezvous.arrive(self.rank, number, what, np.array(array, order="C"), combine)
        return lambda: self._rendezvous.result(self.rank, number, collective)

    def _begin(self, what: str, array: Array, combine: Combine, after: Event | None) -> _StartedWork:
        if after is not None:
            after.wait()
        result = self._arrive(what, array, combine)

        def finish() -> None:
            array[...] = result()

        return _StartedWork(finish)

    def _reducing(self, reduction: str) -> Combine:
        function = REDUCTIONS[check_reduction(reduction)]

        def combine(arrays: Sequence[Array]) -> Sequence[Array]:
            total = reduce(function, arrays)
            return [total] * self.size

        return combine

    def start_all_reduce(self, array: Array, reduction: str, after: Event | None = None) -> _StartedWork:
        return self._begin(f"{reduction} of {array.shape} {array.dtype}", array, self._reducing(reduction), after)

    def reduce_in_place(self, arrays: Sequence[Array], reduction: str) -> None:
        for array in arrays:
            self.start_all_reduce(array, reduction).wait()

    def start_broadcast(self, array: Array, root: int) -> _StartedWork:
        if not 0 <= root < self.size:
            raise CollectiveError(f"the root is member {root}; there are {self.size}, from 0")
        what = f"broadcast of {array.shape} {array.dtype} from {root}"
        return self._begin(what, array, lambda arrays: [arrays[root]] * self.size, None)

    def all_gather(self, array: Array) -> Array:
        what = f"gathering of {array.shape} {array.dtype}"
        return self._arrive(what, array, lambda arrays: [np.stack(arrays)] * self.size)().copy()

    def reduce_scatter(self, array: Array, reduction: str = "sum") -> Array:
        if array.shape[0] % self.size:
            raise CollectiveError(f"{array.shape[0]} rows are to be scattered to {self.size} members: no equal parts")
        combine = self._reducing(reduction)
        what = f"scattered {reduction} of {array.shape} {array.dtype}"
        total = self._arrive(what, array, combine)()
        rows = array.shape[0] // self.size
        return total[self.rank * rows : (self.rank + 1) * rows].copy()

    def barrier(self) -> None:
        self._arrive("barrier", np.zeros(1, np.uint8), lambda arrays: arrays)()
