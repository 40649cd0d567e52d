"""A group of the processes that mpirun started: collective operations by mpi4py, in order.

If each process has a second processor, a communication thread makes all calls, which overlap with computation.
Otherwise such a thread would compete with the computing one: then the thread that starts an operation makes the calls
itself, and reductions on one machine go through shared memory.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from fluidlite.base.errors import CollectiveError, MissingExtraError
from fluidlite.base.fork import new_rlock
from fluidlite.base.log import logger
from fluidlite.distributed.groups import Array, Group, Work, check_reduction
from fluidlite.distributed.machine import free_processors, shared_reductions
from fluidlite.distributed.pending import QueuedWork, StartedWork
from fluidlite.loaders.trace import Span
from fluidlite.memory import memory_of
from fluidlite.platform.device_context import Event
from fluidlite.platform.device_registry import devices

TIMEOUT_VARIABLE = "FLUIDLITE_COLLECTIVE_TIMEOUT"
TIMEOUT_SECONDS = 600.0
"""Default timeout of a collective operation; ``FLUIDLITE_COLLECTIVE_TIMEOUT`` overrides it."""
SPIN_SECONDS = 0.002
NAP_SECONDS = 0.0002
"""A waiting thread yields its processor for so long at first; then it sleeps between polls."""
PROBE_SECONDS = 0.05
"""Interval at which a waiting thread checks whether another process has left."""
LEAVE_SECONDS = 5.0
_TAG = 7341


class MPIGroup(Group):
    """All processes of a communicator.

    A waiting thread regularly checks whether another process has left, and then raises instead of waiting for ever.

    ``mpi``: ``mpi4py.MPI``.
    ``overlaps``: whether operations run on a thread of the group, during computation, on free processors.
    ``shared``: reductions through shared memory, if no processor is free and all processes are on one machine.
    ``trace``: set it to a list to record when each operation was in progress.
    """

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi = mpi
        self._comm = communicator.Dup()
        self._control = communicator.Dup()
        self._lock = new_rlock()
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self._operations = {"sum": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN, "prod": mpi.PROD}
        self._jobs: queue.SimpleQueue[QueuedWork | None] = queue.SimpleQueue()
        self._pending: deque[StartedWork] = deque()
        self._departed: dict[int, str] = {}
        self._broken: str = ""
        self._timeout = _timeout()
        self.trace: list[Span] | None = None
        local = communicator.Split_type(mpi.COMM_TYPE_SHARED)
        self.overlaps = free_processors(local)
        self.shared = None if self.overlaps else shared_reductions(self._comm, local, self._wait)
        self.reduces_in_place = self.shared is not None
        local.Free()
        self._thread = threading.Thread(target=self._serve, name="fluidlite-mpi", daemon=True)
        if self.overlaps:
            self._thread.start()

    # Operations

    def start_all_reduce(self, array: Array, reduction: str, after: Event | None = None) -> Work:
        operation = self._operations[check_reduction(reduction)]
        what = f"the {reduction} of {array.size:,} {array.dtype}"

        def start() -> Any:
            if after is not None:
                after.wait()
            if self.shared is not None:
                return self.shared.reduce([_buffer(array)], reduction, what)
            return self._comm.Iallreduce(self._mpi.IN_PLACE, _buffer(array), operation)

        return self._submit(what, start)

    def reduce_in_place(self, arrays: Sequence[Array], reduction: str) -> None:
        shared = self.shared
        assert shared is not None
        check_reduction(reduction)
        what = f"the {reduction} of {sum(array.size for array in arrays):,} {arrays[0].dtype if arrays else 'numbers'}"
        self._submit(what, lambda: shared.reduce([_buffer(array) for array in arrays], reduction, what)).wait()

    def start_broadcast(self, array: Array, root: int) -> Work:
        if not 0 <= root < self.size:
            raise CollectiveError(f"the root is process {root}; there are {self.size}, from 0")
        what = f"a broadcast of {array.nbytes:,} bytes from process {root}"

        def start() -> Any:
            self._meet(what)
            return self._comm.Ibcast(_bytes(array), root)

        return self._submit(what, start)

    def all_gather(self, array: Array) -> Array:
        own = np.ascontiguousarray(array)
        gathered = np.empty((self.size, *own.shape), own.dtype)
        what = f"a gathering of {own.nbytes:,} bytes of each"

        def start() -> Any:
            self._meet(what)
            return self._comm.Iallgather(_bytes(own), _bytes(gathered))

        self._submit(what, start).wait()
        return gathered

    def reduce_scatter(self, array: Array, reduction: str = "sum") -> Array:
        own = np.ascontiguousarray(array)
        if own.shape[0] % self.size:
            raise CollectiveError(f"{own.shape[0]} rows are to be scattered to {self.size} processes: no equal parts")
        scattered = np.empty((own.shape[0] // self.size, *own.shape[1:]), own.dtype)
        operation = self._operations[check_reduction(reduction)]
        what = f"the scattered {reduction} of {own.size:,} {own.dtype}"

        def start() -> Any:
            self._meet(what)
            return self._comm.Ireduce_scatter_block(_buffer(own), _buffer(scattered), operation)

        self._submit(what, start).wait()
        return scattered

    def barrier(self) -> None:
        if self.shared is not None:
            self._submit("a barrier", lambda: self._meet("a barrier")).wait()
        else:
            self._submit("a barrier", self._comm.Ibarrier).wait()

    def _meet(self, what: str) -> None:
        """Check that all members do the same operation, if that needs no message."""
        if self.shared is not None:
            self.shared.meet(what)

    # Execution

    def _submit(self, what: str, start: Callable[[], Any]) -> QueuedWork | StartedWork:
        if self._broken:
            raise CollectiveError(self._broken)
        if self.overlaps:
            job = QueuedWork(what, start)
            self._jobs.put(job)
            return job
        work = StartedWork(self, what, start)
        with self._lock:
            while self._pending and self._has_ended(self._pending[0]):
                self._pending.popleft()
            try:
                work.request = start()
            except Exception as exc:
                work.error = self._fail(exc, what)
            except BaseException as exc:  # an interrupt leaves it incomplete
                self._fail(exc, what)
                raise
            if work.request is None:
                self._record_span(work)
            else:  # it keeps the memory alive until it has ended, even without a waiting thread
                self._pending.append(work)
        return work

    def _has_ended(self, work: StartedWork) -> bool:
        return work.request is None or bool(work.request.Test())

    def finish(self, work: StartedWork) -> None:
        """Wait for an operation that this thread started."""
        with self._lock:
            if work.request is None:
                return
            try:
                self._wait(work.request, work.what)
            except Exception as exc:
                work.error = self._fail(exc, work.what)
            except BaseException as exc:
                self._fail(exc, work.what)
                raise
            work.request = None
            self._record_span(work)

    def _record_span(self, work: StartedWork) -> None:
        if self.trace is not None:
            self.trace.append(Span(work.what, len(self.trace), work.start_time, time.perf_counter()))

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            error: BaseException | None = None
            trace, begin = self.trace, time.perf_counter()
            try:
                if self._broken:
                    raise CollectiveError(self._broken)
                self._wait(job.start(), job.what)
            except Exception as exc:
                error = self._fail(exc, job.what)
            if trace is not None:
                trace.append(Span(job.what, len(trace), begin, time.perf_counter()))
            job.finish(error)

    def _fail(self, exc: BaseException, what: str) -> CollectiveError:
        """Return the error of a failed operation; the group cannot be used afterwards."""
        error = exc if isinstance(exc, CollectiveError) else None
        if error is None:
            error = CollectiveError(
                f"process {self.rank} of {self.size}: {what} failed: {type(exc).__name__}: {exc}"
                "\n  Do: see that all processes run the same program, with equal dims and dtypes"
            )
            error.__cause__ = exc
        self._broken = str(error)
        return error

    def _wait(self, request: Any, what: str) -> None:
        """Wait for a request, and yield the processor meanwhile."""
        if request.Test():
            return
        began = time.monotonic()
        probed = began
        while not request.Test():
            now = time.monotonic()
            if now - began < SPIN_SECONDS:
                os.sched_yield()
                continue
            time.sleep(NAP_SECONDS)
            if now - probed < PROBE_SECONDS:
                continue
            probed = now
            self._receive_farewells()
            if self._departed:
                if request.Test():  # it took part, and left afterwards
                    return
                whose, why = next(iter(self._departed.items()))
                raise CollectiveError(
                    f"process {whose} of {self.size} {why}, while process {self.rank} waited for {what}"
                    "\n  Do: mend what it failed with; all processes take part in every step"
                )
            if now - began > self._timeout:
                raise CollectiveError(
                    f"process {self.rank} of {self.size} waited {self._timeout:.0f} s for {what}, and not all came"
                    f"\n  Do: see what the others do; {TIMEOUT_VARIABLE} sets the seconds"
                )

    def _receive_farewells(self) -> None:
        """Receive the messages of processes that left."""
        status = self._mpi.Status()
        while self._control.Iprobe(source=self._mpi.ANY_SOURCE, tag=_TAG, status=status):
            source = status.Get_source()
            self._departed[source] = str(self._control.recv(source=source, tag=_TAG))

    # The end

    def leave(self, why: str, failed: bool) -> None:
        """Notify the others that this process ends, and wait for them briefly; after a failure, abort all processes."""
        with contextlib.suppress(Exception):
            if self.overlaps:
                self._jobs.put(None)
                self._thread.join(LEAVE_SECONDS if not failed else 1.0)
            for other in range(self.size):
                if other != self.rank:
                    self._control.isend(why, dest=other, tag=_TAG)
            deadline = time.monotonic() + (LEAVE_SECONDS if failed else self._timeout)
            while len(self._departed) < self.size - 1 and time.monotonic() < deadline:
                self._receive_farewells()
                time.sleep(0.002)
            failed = failed or len(self._departed) < self.size - 1
        if failed:
            sys.stdout.flush()
            sys.stderr.flush()
            self._mpi.COMM_WORLD.Abort(1)


def _timeout() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text) if text else TIMEOUT_SECONDS
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise CollectiveError(f"{TIMEOUT_VARIABLE} is {text!r}; expected seconds above 0")
    return seconds


def _buffer(array: Array) -> Array:
    if array.dtype.kind not in "iufb" or array.dtype.itemsize < 1 or array.dtype == np.float16:
        raise CollectiveError(f"MPI reduces no {array.dtype}")
    return array


def _bytes(array: Array) -> Array:
    content: Array = array.reshape(-1).view(np.uint8)
    return content


_world: MPIGroup | None = None


def mpi_world() -> MPIGroup:
    """The group of all processes, created at the first call.

    Raises MissingExtraError if mpi4py is not installed.
    Raises CollectiveError if MPI supports calls of the main thread only.
    """
    global _world
    if _world is not None:
        return _world
    try:
        from mpi4py import MPI
    except ImportError as exc:
        raise MissingExtraError(
            f"several processes were started, and mpi4py cannot be imported ({exc})\n  Do: pip install 'fluidlite[mpi]'"
        ) from None
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise CollectiveError(
            "this MPI may be called by the main thread only\n  Do: use one with MPI_THREAD_SERIALIZED"
        )
    _world = MPIGroup(MPI, MPI.COMM_WORLD)
    if _world.shared is not None:  # gradients are allocated in shared memory, and summed in place
        memory_of(devices.host()).arena_source = _world.shared.heap.allocate
    _end_with_the_process(_world)
    return _world


def _end_with_the_process(group: MPIGroup) -> None:
    """Notify the other processes when this one ends, with its exception."""
    previous_hook = sys.excepthook
    failure: list[str] = []

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        failure.append(f"ended by {kind.__name__}: {str(error).partition(chr(10))[0]:.300}")
        previous_hook(kind, error, trace)

    def at_exit() -> None:
        why = failure[0] if failure else "left"
        logger.debug("process %d of %d %s", group.rank, group.size, why)
        group.leave(why, bool(failure))

    sys.excepthook = hook
    atexit.register(at_exit)
