"""One epoch: workers that fill buffers ahead of the caller, and the caller's end of them.

Three queues connect them. The caller gives permits, one for each batch that may be made ahead; buffers that are free
wait in another; what workers made, and buffers whose leases ended, come to the caller's inbox. They are of the kind
that a finaliser may put into, as leases end wherever Python collects them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter
from typing import Any, NamedTuple, NoReturn
from weakref import ref

from fluidlite.base.collection import collecting
from fluidlite.base.errors import FluidError, LoaderError
from fluidlite.base.fork import new_lock, new_rlock
from fluidlite.base.log import logger
from fluidlite.loaders.producer import END, Producer
from fluidlite.loaders.ring import Lease, Part, Ring, Slot
from fluidlite.loaders.trace import Span
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_context import Event
from fluidlite.tensor.tensor import Tensor

PATIENCE = 5.0
"""Seconds for which closing waits for a worker that is in its source; it ends by itself when that returns."""


class Ready(NamedTuple):
    """A batch that lies in a buffer."""

    number: int
    slot: Slot
    parts: list[Part]
    size: int


class Failed(NamedTuple):
    """What was raised while a batch was made."""

    number: int
    error: BaseException


class Ended(NamedTuple):
    """The number that the next batch would have had."""

    number: int


class EpochRun:
    """The workers of one epoch, their buffers, and what they made.

    ``producers``: one for each worker; ``requests`` is asked what goes into each batch.
    ``trace``: is told what workers do.
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
        self._free: SimpleQueue[Slot | None] = SimpleQueue()
        self._ended_leases: SimpleQueue[Any] = self._free if ring.host else self._inbox
        """Where buffers go when leases end: a device's queues are asked first what they have enqueued on them."""
        self._permits: SimpleQueue[bool | None] = SimpleQueue()
        self._requesting = new_lock()
        self._ending = new_rlock()  # Python may collect the iterator while a worker has it
        self._working = len(producers)
        self._requested = 0
        self._ended = False
        self._results: dict[int, Ready | Failed] = {}
        self._next = 0
        self._end: int | None = None
        self._leases: list[tuple[Slot, ref[Lease]]] = []
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
        """How many batches are made, or being made, that the caller has not been given."""
        return self._requested - self._next

    # Workers

    def _work(self, producer: Producer) -> None:
        try:
            while self._make_one(producer):
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

    def _make_one(self, producer: Producer) -> bool:
        """Make one batch; False: there is nothing more to do."""
        if self._permits.get() is None:
            return False
        slot = self._free_slot()
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
                return self._stop(Failed(number, exc))
            if isinstance(request, str) and request == END:
                return self._stop(Ended(number))
            self._requested += 1
        try:
            batch = producer.produce(request)
            if isinstance(batch, str):
                return self._stop(Ended(number))
            middle = perf_counter()
            if self.closed:
                return False
            parts = self._ring.fill(slot, batch)
        except BaseException as exc:
            return self._stop(Failed(number, exc))
        if self._trace is not None:
            self._trace.append(Span("source", number, begin, middle))
            self._trace.append(Span("copy", number, middle, perf_counter()))
        self._inbox.put(Ready(number, slot, parts, batch.size))
        return True

    def _free_slot(self) -> Slot | None:
        while (found := self._free.get()) is not None:
            if not found.donated:
                return found
        return None

    def _stop(self, last: Failed | Ended) -> bool:
        self._ended = True
        self._inbox.put(last)
        return False

    # The caller's end

    def next(self) -> tuple[int, int, dict[str, Tensor]] | None:
        """The next batch: its number, its samples, its tensors by name. None: there are no more.

        Raises Exception: what was raised while this batch was made.
        """
        if self.closed:
            return None
        try:
            return self._take()
        except BaseException:  # an interrupt, too: what it cut short may have lost a batch
            self.close()
            raise

    def _take(self) -> tuple[int, int, dict[str, Tensor]] | None:
        self._leases = [lease for lease in self._leases if lease[1]() is not None]
        self._accept_all()
        while self._next not in self._results:
            if self._end == self._next:
                self.close()
                return None
            if len(self._leases) >= self._buffers:  # the caller keeps them all: no worker could go on
                slot, _ = self._leases.pop(0)
                self._free.put(self._ring.donate(slot))
            self._accept(self._inbox.get())
            if self.closed:
                return None
        found = self._results.pop(self._next)
        if isinstance(found, Failed):
            self._raise(found)
        self._next += 1
        lease, tensors = self._ring.lend(found.slot, found.parts, get_context(self._ring.place), self._ended_leases)
        self._leases.append((found.slot, ref(lease)))
        self._permits.put(True)
        names = [part.name for part in found.parts]
        return found.number, found.size, dict(zip(names, tensors, strict=True))

    def _raise(self, failed: Failed) -> NoReturn:
        error = failed.error
        error.add_note(f"in batch {failed.number} of a loader")
        if isinstance(error, StopIteration):  # it would end the caller's loop without a word
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
        if isinstance(item, Slot):
            if not item.donated:
                item.after = _events(item.readers)
                self._free.put(item)
        elif isinstance(item, Ended):
            self._end = item.number
        elif item is not None:
            self._results[item.number] = item

    def close(self) -> None:
        """End the workers and let go of the buffers; may be called twice, from any thread.

        A worker that is in its source for longer than 5 seconds is not waited for.
        """
        if not self._end_workers():
            return
        for producer in self._producers:
            producer.tell()
        for producer in self._producers:
            producer.stop()
        deadline = monotonic() + PATIENCE
        mine = threading.current_thread()
        for thread in self._threads:
            if thread is not mine:
                thread.join(max(deadline - monotonic(), 0))
        left = [thread.name for thread in self._threads if thread is not mine and thread.is_alive()]
        if left:
            logger.warning("%s still in the source of a loader that is closed; ends when that returns", ", ".join(left))

    def abandon(self) -> None:
        """Close it for an iterator that nobody holds any more.

        Where Python collects that, this thread may hold any lock, so that nothing is waited for: the last worker that
        ends lets go of the buffers.
        """
        if not collecting():
            self.close()
        elif self._end_workers():
            for producer in self._producers:
                producer.kill()

    def _end_workers(self) -> bool:
        """Tell the workers to end; False: they were told before, or belong to the process that this was forked from."""
        if os.getpid() != self._process:
            return False
        with self._ending:
            before, self.closed = self.closed, True
            idle = not self._working
        if before:
            return False
        for _ in self._threads:
            self._permits.put(None)
            self._free.put(None)
        self._inbox.put(None)  # a caller on another thread may wait for a batch
        if idle:  # they all ended before
            self._clear()
        return True

    def _clear(self) -> None:
        """Let go of the buffers and of the source; nobody works any more."""
        self._results.clear()
        try:
            self._ring.close(wait=not collecting())
        except FluidError as exc:
            logger.debug("closing the buffers of a loader on %s: %s", self._ring.place, exc)
        try:
            self._requests.close()
        except Exception as exc:
            logger.warning("closing the source of a loader: %s: %s", type(exc).__name__, exc)


def _events(readers: Collection[Context]) -> tuple[Event, ...]:
    """Events of what some contexts have enqueued so far; the queues are held for a moment, as one thread uses each."""
    found = []
    for reader in readers:
        with reader.lock:
            found.append(reader.record())
    return tuple(found)
