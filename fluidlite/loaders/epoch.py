"""One epoch of a loader: workers that prefetch batches into buffers, and the caller's side.

Three queues connect them: permits, one for each batch that may be prefetched; free buffers; and the caller's inbox, for
finished batches and buffers whose leases ended. They are SimpleQueues, which finalizers may put into: leases end
wherever Python collects them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter
from typing import Any, NamedTuple, NoReturn
from weakref import ref

from fluidlite.base.collection import is_collecting
from fluidlite.base.errors import FluidError, LoaderError
from fluidlite.base.fork import new_lock, new_rlock
from fluidlite.base.log import logger
from fluidlite.loaders.producer import END, Producer
from fluidlite.loaders.ring import FieldLayout, Lease, Ring, RingBuffer
from fluidlite.loaders.trace import Span
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_context import Event
from fluidlite.tensor.tensor import Tensor

PATIENCE_SECONDS = 5.0
"""Seconds for which ``close`` waits for a worker that reads its source; the worker ends when the read returns."""


class ReadyBatch(NamedTuple):
    """A finished batch in a buffer."""

    number: int
    slot: RingBuffer
    parts: list[FieldLayout]
    size: int


class FailedBatch(NamedTuple):
    """The exception that was raised while a batch was assembled."""

    number: int
    error: BaseException


class EndOfEpoch(NamedTuple):
    """The end of the epoch: the number that the next batch would have had."""

    number: int


class EpochRun:
    """The workers of one epoch, their buffers and their finished batches.

    ``producers``: one for each worker; ``requests`` determines the samples of each batch.
    ``trace``: a list that records the work of the workers.
    """

    def __init__(
        self,
        producers: Sequence[Producer],
        requests: Producer,
        ring: Ring,
        buffers: int,
        preload: int,
        trace: list[Span] | None = None,
    ) -> None:
        self._process = os.getpid()
        self._producers = producers
        self._requests = requests
        self._ring = ring
        self._buffers = buffers
        self._trace = trace
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._free: SimpleQueue[RingBuffer | None] = SimpleQueue()
        self._ended_leases: SimpleQueue[Any] = self._free if ring.host else self._inbox
        """The queue for buffers whose leases ended: on a device, events of their readers are recorded first."""
        self._permits: SimpleQueue[bool | None] = SimpleQueue()
        self._requesting = new_lock()
        self._taking = new_lock()
        self._ending = new_rlock()  # re-entrant: Python may collect the iterator in a thread that holds it
        self._working = len(producers)
        self._requested = 0
        self._ended = False
        self._results: dict[int, ReadyBatch | FailedBatch] = {}
        self._next = 0
        self._end: int | None = None
        self._leases: list[tuple[RingBuffer, ref[Lease]]] = []
        self.closed = False
        for _ in range(buffers):
            self._free.put(ring.add())
        for _ in range(preload):
            self._permits.put(True)
        self._threads = [
            threading.Thread(target=self._work, args=(producer,), name=f"fluidlite-loader-{number}", daemon=True)
            for number, producer in enumerate(producers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def ahead(self) -> int:
        """The number of batches that are prefetched or in progress."""
        return self._requested - self._next

    # Workers

    def _work(self, producer: Producer) -> None:
        try:
            while self._produce_one(producer):
                pass
        finally:
            try:
                if producer is not self._requests:
                    producer.close()
            finally:
                with self._ending:
                    self._working -= 1
                    last = not self._working
                if last and self.closed:
                    self._clear()

    def _produce_one(self, producer: Producer) -> bool:
        """Assemble one batch; return False if there is nothing more to do."""
        if self._permits.get() is None:
            return False
        slot = self._free_buffer()
        if slot is None:
            return False
        begin = perf_counter()
        with self._requesting:
            if self._ended or self.closed:
                return False
            number = self._requested
            try:
                request = self._requests.request()
            except BaseException as exc:
                return self._stop(FailedBatch(number, exc))
            if isinstance(request, str) and request == END:
                return self._stop(EndOfEpoch(number))
            self._requested += 1
        try:
            batch = producer.produce(request)
            if isinstance(batch, str):
                return self._stop(EndOfEpoch(number))
            middle = perf_counter()
            if self.closed:
                return False
            parts = self._ring.fill(slot, batch)
        except BaseException as exc:
            return self._stop(FailedBatch(number, exc))
        if self._trace is not None:
            self._trace.append(Span("source", number, begin, middle))
            self._trace.append(Span("copy", number, middle, perf_counter()))
        self._inbox.put(ReadyBatch(number, slot, parts, batch.size))
        return True

    def _free_buffer(self) -> RingBuffer | None:
        while (buffer := self._free.get()) is not None:
            if not buffer.donated:
                return buffer
        return None

    def _stop(self, last: FailedBatch | EndOfEpoch) -> bool:
        self._ended = True
        self._inbox.put(last)
        return False

    # The caller's side

    def next(self) -> tuple[int, int, dict[str, Tensor]] | None:
        """The next batch: its number, its number of samples, its tensors by name. None: the epoch has ended.

        Raises the exception that was raised while this batch was assembled.
        """
        try:
            with self._taking:
                return None if self.closed else self._take()
        except BaseException:  # including an interrupt, which may have lost a batch
            self.close()
            raise

    def _take(self) -> tuple[int, int, dict[str, Tensor]] | None:
        self._leases = [lease for lease in self._leases if lease[1]() is not None]
        self._accept_all()
        while self._next not in self._results:
            if self._end == self._next:
                self.close()
                return None
            if len(self._leases) >= self._buffers:  # the caller holds all buffers: no worker could continue
                slot, _ = self._leases.pop(0)
                self._free.put(self._ring.donate(slot))
            self._accept(self._inbox.get())
            if self.closed:
                return None
        result = self._results.pop(self._next)
        if isinstance(result, FailedBatch):
            self._raise(result)
        self._next += 1
        lease, tensors = self._ring.lend(result.slot, result.parts, get_context(self._ring.place), self._ended_leases)
        self._leases.append((result.slot, ref(lease)))
        self._permits.put(True)
        names = [part.name for part in result.parts]
        return result.number, result.size, dict(zip(names, tensors, strict=True))

    def _raise(self, failed: FailedBatch) -> NoReturn:
        error = failed.error
        error.add_note(f"in batch {failed.number} of a loader")
        if isinstance(error, StopIteration):  # it would silently end the caller's loop
            raise LoaderError(f"StopIteration was raised while batch {failed.number} was made") from error
        raise error

    def _accept_all(self) -> None:
        while True:
            try:
                item = self._inbox.get_nowait()
            except Empty:
                return
            self._accept(item)

    def _accept(self, item: Any) -> None:
        if isinstance(item, RingBuffer):
            if not item.donated:
                item.after = _events(item.readers)
                self._free.put(item)
        elif isinstance(item, EndOfEpoch):
            self._end = item.number
        elif item is not None:
            self._results[item.number] = item

    def close(self) -> None:
        """End the workers and release the buffers; may be called twice, from any thread.

        It waits for a worker that reads its source for at most 5 seconds.
        """
        if not self._end_workers():
            return
        for producer in self._producers:
            producer.request_end()
        for producer in self._producers:
            producer.stop()
        deadline = monotonic() + PATIENCE_SECONDS
        current = threading.current_thread()
        for thread in self._threads:
            if thread is not current:
                thread.join(max(deadline - monotonic(), 0))
        alive = [thread.name for thread in self._threads if thread is not current and thread.is_alive()]
        if alive:
            logger.warning(
                "%s still in the source of a loader that is closed; ends when that returns", ", ".join(alive)
            )

    def abandon(self) -> None:
        """Close the epoch of an unreferenced iterator.

        During a garbage collection this thread may hold any lock, so it waits for nothing: the last worker that ends
        releases the buffers.
        """
        if not is_collecting():
            self.close()
        elif self._end_workers():
            for producer in self._producers:
                producer.kill()

    def _end_workers(self) -> bool:
        """Signal the workers to end; False: that was done before, or they belong to the parent process."""
        if os.getpid() != self._process:
            return False
        with self._ending:
            was_closed, self.closed = self.closed, True
            idle = not self._working
        if was_closed:
            return False
        for _ in self._threads:
            self._permits.put(None)
            self._free.put(None)
        self._inbox.put(None)  # a caller on another thread may wait for a batch
        if idle:  # all workers ended before
            self._clear()
        return True

    def _clear(self) -> None:
        """Release the buffers and the source, after all workers have ended."""
        self._results.clear()
        try:
            self._ring.close(wait=not is_collecting())
        except FluidError as exc:
            logger.debug("closing the buffers of a loader on %s: %s", self._ring.place, exc)
        try:
            self._requests.close()
        except Exception as exc:
            logger.warning("closing the source of a loader: %s: %s", type(exc).__name__, exc)


def _events(readers: Collection[Context]) -> tuple[Event, ...]:
    """Record events on the queues of contexts, each under its lock, since one thread at a time may use a queue."""
    events = []
    for reader in readers:
        with reader.lock:
            events.append(reader.record())
    return tuple(events)
