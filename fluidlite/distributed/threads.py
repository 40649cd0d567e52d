"""A group of threads of one process: what several places of it, or a test, reduce with."""

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


class _Meeting:
    """One operation: the arrays that have come, and the results once all have."""

    def __init__(self, size: int) -> None:
        self.came: list[Array | None] = [None] * size
        self.what: list[str] = [""] * size
        self.results: Sequence[Array] = ()
        self.taken = 0
        self.over = threading.Event()


class Meeting:
    """Where the members of a group of threads meet.

    ``members``: one for each thread.
    """

    def __init__(self, size: int) -> None:
        self._lock = new_lock()
        self._meetings: dict[int, _Meeting] = {}
        self._broken: str = ""
        self.size = size
        self.members = [ThreadGroup(self, rank) for rank in range(size)]

    def fail(self, rank: int, error: BaseException) -> None:
        """Say that a member cannot go on: those that wait for it, or will, raise."""
        with self._lock:
            self._broken = self._broken or f"member {rank} of {self.size} ended by {type(error).__name__}: {error}"
            for meeting in self._meetings.values():
                meeting.over.set()

    def come(self, rank: int, number: int, what: str, array: Array, combine: Combine) -> _Meeting:
        """Bring an array to the ``number``-th operation; who comes last computes."""
        with self._lock:
            if self._broken:
                raise CollectiveError(self._broken)
            meeting = self._meetings.setdefault(number, _Meeting(self.size))
            meeting.came[rank], meeting.what[rank] = array, what
            arrived = [item for item in meeting.came if item is not None]
            if len(arrived) < self.size:
                return meeting
            if len(set(meeting.what)) > 1:
                self._broken = f"the members do different operations: {', '.join(sorted(set(meeting.what)))}"
            else:
                meeting.results = combine(arrived)
            meeting.over.set()
        return meeting

    def result(self, rank: int, number: int, meeting: _Meeting) -> Array:
        if not meeting.over.wait(TIMEOUT_SECONDS):
            raise CollectiveError(f"member {rank} of {self.size} waited {TIMEOUT_SECONDS:.0f} s, and not all came")
        if not meeting.results:
            raise CollectiveError(self._broken)
        with self._lock:
            meeting.taken += 1
            if meeting.taken == self.size:
                self._meetings.pop(number, None)
        return meeting.results[rank]


class _Work:
    """An operation that was begun; the result is copied into the array."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def wait(self) -> None:
        self._finish()


class ThreadGroup(Group):
    """One member of a :class:`Meeting`."""

    reduces_at_once = False

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, meeting.size
        self._number = 0

    def _come(self, what: str, array: Array, combine: Combine) -> Callable[[], Array]:
        number, self._number = self._number, self._number + 1
        meeting = self._meeting.come(self.rank, number, what, np.array(array, order="C"), combine)
        return lambda: self._meeting.result(self.rank, number, meeting)

    def _begin(self, what: str, array: Array, combine: Combine, after: Event | None) -> _Work:
        if after is not None:
            after.wait()
        result = self._come(what, array, combine)

        def finish() -> None:
            array[...] = result()

        return _Work(finish)

    def _reducing(self, reduction: str) -> Combine:
        function = REDUCTIONS[check_reduction(reduction)]

        def combine(arrays: Sequence[Array]) -> Sequence[Array]:
            total = reduce(function, arrays)
            return [total] * self.size

        return combine

    def start_all_reduce(self, array: Array, reduction: str, after: Event | None = None) -> _Work:
        return self._begin(f"{reduction} of {array.shape} {array.dtype}", array, self._reducing(reduction), after)

    def reduce_now(self, arrays: Sequence[Array], reduction: str) -> None:
        for array in arrays:
            self.start_all_reduce(array, reduction).wait()

    def start_broadcast(self, array: Array, root: int) -> _Work:
        if not 0 <= root < self.size:
            raise CollectiveError(f"the root is member {root}; there are {self.size}, from 0")
        what = f"broadcast of {array.shape} {array.dtype} from {root}"
        return self._begin(what, array, lambda arrays: [arrays[root]] * self.size, None)

    def all_gather(self, array: Array) -> Array:
        what = f"gathering of {array.shape} {array.dtype}"
        return self._come(what, array, lambda arrays: [np.stack(arrays)] * self.size)().copy()

    def reduce_scatter(self, array: Array, reduction: str = "sum") -> Array:
        if array.shape[0] % self.size:
            raise CollectiveError(f"{array.shape[0]} rows are to be scattered to {self.size} members: no equal parts")
        combine = self._reducing(reduction)
        what = f"scattered {reduction} of {array.shape} {array.dtype}"
        total = self._come(what, array, combine)()
        rows = array.shape[0] // self.size
        return total[self.rank * rows : (self.rank + 1) * rows].copy()

    def barrier(self) -> None:
        self._come("barrier", np.zeros(1, np.uint8), lambda arrays: arrays)()
