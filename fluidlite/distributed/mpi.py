"""A group of processes that mpirun started: collective operations by mpi4py, in order.

Where processors are free beside the computing ones, all calls are made on a thread of its own, so that computing goes
on meanwhile. Where none is, a thread would take the processor from the one that computes: the calls are made by whoever
begins an operation and waits for it, and reductions on one machine through memory that all its processes see.
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
from fluidlite.distributed.pending import Begun, Queued
from fluidlite.loaders.trace import Span
from fluidlite.memory import memory_of
from fluidlite.platform.device_context import Event
from fluidlite.platform.device_registry import devices

TIMEOUT_VARIABLE = "FLUIDLITE_COLLECTIVE_TIMEOUT"
TIMEOUT_SECONDS = 600.0
"""How long a collective operation waits for the others, unless the environment says otherwise."""
SPIN_SECONDS = 0.002
NAP_SECONDS = 0.0002
PROBE_SECONDS = 0.05
"""How often somebody who waits looks whether another process has left."""
LEAVE_SECONDS = 5.0
_TAG = 7341


class MPIGroup(Group):
    """All processes of a communicator.

    Whoever waits looks now and then whether another process has left, and says so instead of waiting for ever.

    ``mpi``: ``mpi4py.MPI``.
    ``overlaps``: whether operations go on beside computing, on a thread of the group: processors are free for that.
    ``shared``: what reduces through memory, where no processor is free and all processes are on one machine.
    ``trace``: is told when each operation was under way, if somebody sets it to a list.
    """

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi = mpi
        self._comm = communicator.Dup()
        self._control = communicator.Dup()
        self._lock = new_rlock()
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self._operations = {"sum": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN, "prod": mpi.PROD}
        self._jobs: queue.SimpleQueue[Queued | None] = queue.SimpleQueue()
        self._pending: deque[Begun] = deque()
        self._left: dict[int, str] = {}
        self._broken: str = ""
        self._timeout = _timeout()
        self.trace: list[Span] | None = None
        local = communicator.Split_type(mpi.COMM_TYPE_SHARED)
        self.overlaps = free_processors(local)
        self.shared = None if self.overlaps else shared_reductions(self._comm, local, self._wait)
        self.reduces_at_once = self.shared is not None
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

    def reduce_now(self, arrays: Sequence[Array], reduction: str) -> None:
        shared = self.shared
        assert shared is not None
        check_reduction(reduction)
        what = f"the {reduction} of {sum(array.size for array in arrays):,} {arrays[0].dtype}"
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
        found = np.empty((self.size, *own.shape), own.dtype)
        what = f"a gathering of {own.nbytes:,} bytes of each"

        def start() -> Any:
            self._meet(what)
            return self._comm.Iallgather(_bytes(own), _bytes(found))

        self._submit(what, start).wait()
        return found

    def reduce_scatter(self, array: Array, reduction: str = "sum") -> Array:
        own = np.ascontiguousarray(array)
        if own.shape[0] % self.size:
            raise CollectiveError(f"{own.shape[0]} rows are to be scattered to {self.size} processes: no equal parts")
        found = np.empty((own.shape[0] // self.size, *own.shape[1:]), own.dtype)
        operation = self._operations[check_reduction(reduction)]
        what = f"the scattered {reduction} of {own.size:,} {own.dtype}"

        def start() -> Any:
            self._meet(what)
            return self._comm.Ireduce_scatter_block(_buffer(own), _buffer(found), operation)

        self._submit(what, start).wait()
        return found

    def barrier(self) -> None:
        if self.shared is not None:
            self._submit("a barrier", lambda: self._meet("a barrier")).wait()
        else:
            self._submit("a barrier", self._comm.Ibarrier).wait()

    def _meet(self, what: str) -> None:
        """See that all do the same, where that costs nothing."""
        if self.shared is not None:
            self.shared.meet(what)

    # How they are done

    def _submit(self, what: str, start: Callable[[], Any]) -> Queued | Begun:
        if self._broken:
            raise CollectiveError(self._broken)
        if self.overlaps:
            job = Queued(what, start)
            self._jobs.put(job)
            return job
        begun = Begun(self, what, start)
        with self._lock:
            while self._pending and self._ended(self._pending[0]):
                self._pending.popleft()
            try:
                begun.request = start()
            except Exception as exc:
                begun.error = self._failed(exc, what)
            except BaseException as exc:  # an interrupt leaves it half done
                self._failed(exc, what)
                raise
            if begun.request is None:
                self._note(begun)
            else:  # it holds the memory until it has ended, also if nobody waits for it
                self._pending.append(begun)
        return begun

    def _ended(self, begun: Begun) -> bool:
        return begun.request is None or bool(begun.request.Test())

    def finish(self, begun: Begun) -> None:
        """Wait for an operation that this thread began."""
        with self._lock:
            if begun.request is None:
                return
            try:
                self._wait(begun.request, begun.what)
            except Exception as exc:
                begun.error = self._failed(exc, begun.what)
            except BaseException as exc:
                self._failed(exc, begun.what)
                raise
            begun.request = None
            self._note(begun)

    def _note(self, begun: Begun) -> None:
        if self.trace is not None:
            self.trace.append(Span(begun.what, len(self.trace), begun.began, time.perf_counter()))

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
                error = self._failed(exc, job.what)
            if trace is not None:
                trace.append(Span(job.what, len(trace), begin, time.perf_counter()))
            job.finish(error)

    def _failed(self, exc: BaseException, what: str) -> CollectiveError:
        """What whoever waits is told of an operation that failed; nothing else can be done afterwards."""
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
        """Wait for a request, and give the processor away meanwhile."""
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
            self._look()
            if self._left:
                if request.Test():  # it came, and left afterwards
                    return
                whose, why = next(iter(self._left.items()))
                raise CollectiveError(
                    f"process {whose} of {self.size} {why}, while process {self.rank} waited for {what}"
                    "\n  Do: mend what it failed with; all processes take part in every step"
                )
            if now - began > self._timeout:
                raise CollectiveError(
                    f"process {self.rank} of {self.size} waited {self._timeout:.0f} s for {what}, and not all came"
                    f"\n  Do: see what the others do; {TIMEOUT_VARIABLE} sets the seconds"
                )

    def _look(self) -> None:
        """Take messages of processes that left."""
        status = self._mpi.Status()
        while self._control.Iprobe(source=self._mpi.ANY_SOURCE, tag=_TAG, status=status):
            source = status.Get_source()
            self._left[source] = str(self._control.recv(source=source, tag=_TAG))

    # The end

    def leave(self, why: str, failed: bool) -> None:
        """Tell the others that this process ends, and wait for them a little; one that failed ends all then."""
        with contextlib.suppress(Exception):
            if self.overlaps:
                self._jobs.put(None)
                self._thread.join(LEAVE_SECONDS if not failed else 1.0)
            for other in range(self.size):
                if other != self.rank:
                    self._control.isend(why, dest=other, tag=_TAG)
            until = time.monotonic() + (LEAVE_SECONDS if failed else self._timeout)
            while len(self._left) < self.size - 1 and time.monotonic() < until:
                self._look()
                time.sleep(0.002)
            failed = failed or len(self._left) < self.size - 1
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
    found: Array = array.reshape(-1).view(np.uint8)
    return found


_world: MPIGroup | None = None


def mpi_world() -> MPIGroup:
    """The group of all processes, made at the first call.

    Raises MissingExtraError: mpi4py is not installed.
    Raises CollectiveError: MPI cannot be used by a thread beside the main one.
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
    if _world.shared is not None:  # gradients are summed where they lie
        memory_of(devices.host()).arena_source = _world.shared.heap.allocate
    _end_with_the_process(_world)
    return _world


def _end_with_the_process(group: MPIGroup) -> None:
    """Let the others know when this process ends, and of what."""
    before = sys.excepthook
    failure: list[str] = []

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        failure.append(f"ended by {kind.__name__}: {str(error).partition(chr(10))[0]:.300}")
        before(kind, error, trace)

    def at_exit() -> None:
        why = failure[0] if failure else "left"
        logger.debug("process %d of %d %s", group.rank, group.size, why)
        group.leave(why, bool(failure))

    sys.excepthook = hook
    atexit.register(at_exit)
