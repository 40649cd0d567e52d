"""The ring of a loader's buffers: each is filled through a copy queue, lent to the caller, and reused.

A buffer holds all fields of a batch contiguously, so that a batch takes one copy. Tensors of a batch share a lease of
its buffer. The lease ends with the last reference; the buffer then returns with the contexts that have read it, and is
overwritten only after the work that these had enqueued by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.fork import new_lock
from fluidlite.loaders.assembly import HostBatch
from fluidlite.memory import alloc
from fluidlite.memory.allocation import Allocation
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import new_context
from fluidlite.platform.device_context import DoneEvent, Event
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.platform.place import Place
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

_copy_queues: dict[Unit, Context] = {}
_lock = new_lock()
_pending_staging: deque[tuple[Event, Any]] = deque()
"""Staging memory of collected rings, each with the event after which it is no longer read."""
DONE = DoneEvent()


def copy_queue(place: Place) -> Context:
    """The queue of a place for the copies of all loaders, and for nothing else."""
    unit = devices.unit(place)
    with _lock:
        queue = _copy_queues.get(unit)
        if queue is None or queue.closed:
            for removed_unit in [other for other in _copy_queues if other.removed]:
                del _copy_queues[removed_unit]
            queue = _copy_queues[unit] = new_context(place)
        return queue


class RingBuffer:
    """One buffer of the ring.

    ``allocation``: its memory on the place; None: it was not filled yet, or the ring is closed.
    ``donated``: whether its memory was left to a caller who holds its batch: it is not reused.
    ``ready``: the event after which the batch is complete.
    ``readers``: the contexts that used its last batch.
    ``after``: the events after which it may be overwritten.
    """

    __slots__ = ("after", "allocation", "donated", "readers", "ready", "staging")

    def __init__(self) -> None:
        self.allocation: Allocation | None = None
        self.staging: Any = None
        self.ready: Event = DONE
        self.readers: set[Context] = set()
        self.after: tuple[Event, ...] = ()
        self.donated = False


class FieldLayout(NamedTuple):
    """The spec of a batch's field and its offset in the buffer."""

    name: str
    spec: Spec
    offset: int


class Lease(Allocation):
    """The memory of one batch, as long as one of its tensors is referenced.

    ``context``: the context that reads it.
    ``ended``: the queue that gets the buffer when the lease ends.
    """

    __slots__ = ("_base",)
    recyclable = False

    def __init__(self, slot: RingBuffer, context: Context, ended: SimpleQueue[Any]) -> None:
        base = slot.allocation
        assert base is not None
        super().__init__(base.memory, base.live_block(), base.nbytes, context, base.offset, owned=False)
        self._base = base
        self.users = slot.readers = {context}
        self.finalizer = partial(ended.put, slot)
        base.used_by(context)  # if the lease is the last reference, the pool waits for its users

    def used_by(self, context: Context) -> None:
        super().used_by(context)
        self._base.used_by(context)


class Ring:
    """The buffers of one epoch on a place.

    ``context``: the copy queue; several threads may fill buffers concurrently.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.place = context.place
        self.host = context.unit.info.host
        self._alignment = max(context.unit.info.alignment, 64)
        self.slots: list[RingBuffer] = []

    def add(self) -> RingBuffer:
        slot = RingBuffer()
        self.slots.append(slot)
        return slot

    def donate(self, slot: RingBuffer) -> RingBuffer:
        """Leave a buffer to the holder of its batch; return a new one that replaces it."""
        slot.donated = True
        slot.allocation = slot.staging = None
        self.slots.remove(slot)
        return self.add()

    def close(self, wait: bool = True) -> None:
        """Release all buffers; the memory of referenced batches is released with them.

        Staging memory is read until the last copy is complete. Without ``wait`` a later ring releases it.
        """
        slots, self.slots = self.slots, []
        for slot in slots:
            slot.donated = True
            slot.allocation = None
            if not wait and not self.host:
                _pending_staging.append((slot.ready, slot.staging))
        for _ in range(len(_pending_staging) if wait else 0):
            event, staging = _pending_staging.popleft()
            if not event.done():
                _pending_staging.append((event, staging))
        for slot in slots if wait else ():
            slot.ready.wait()
            slot.staging = None

    def fill(self, slot: RingBuffer, batch: HostBatch) -> list[FieldLayout]:
        """Write a batch into a buffer, after the events ``slot.after``; it is complete after ``slot.ready``.

        Raises OutOfMemoryError, DeviceError.
        """
        parts, size = self._layout(batch)
        slot.ready.wait()
        if self.host:
            for event in slot.after:
                event.wait()
            if slot.allocation is None or slot.allocation.nbytes < size:
                slot.allocation = None
                slot.allocation = alloc(self.place, size, self.context)
            span = slot.allocation.span()
            write(memoryview(span.handle).cast("B")[span.offset : span.offset + span.nbytes], parts, batch)
            return parts
        if slot.staging is None or slot.staging.nbytes < size:
            with self.context.lock:
                slot.staging = self.context.pinned(max(size, 1)) or memoryview(bytearray(size))
        write(slot.staging, parts, batch)
        with self.context.lock:
            for event in slot.after:
                self.context.wait_for(event)
            if slot.allocation is None or slot.allocation.nbytes < size:
                slot.allocation = None
                slot.allocation = alloc(self.place, size, self.context)
            self.context.copy_in_async(slot.allocation.span()._replace(nbytes=size), slot.staging[:size])
            slot.ready = self.context.record()
        return parts

    def _layout(self, batch: HostBatch) -> tuple[list[FieldLayout], int]:
        parts, offset = [], 0
        for field in batch.fields:
            spec = Spec.of(field.array.shape, field.dtype, field.lod)
            parts.append(FieldLayout(field.name, spec, offset))
            offset += -(-spec.nbytes // self._alignment) * self._alignment
        return parts, offset

    def lend(
        self, slot: RingBuffer, parts: Iterable[FieldLayout], reader: Context, ended: SimpleQueue[Any]
    ) -> tuple[Lease, list[Tensor]]:
        """Lend a buffer to a context, whose later work waits for the batch; return the lease and the tensors."""
        if not self.host:
            with reader.lock:
                reader.wait_for(slot.ready)
        lease = Lease(slot, reader, ended)
        return lease, [Tensor.of(part.spec, self.place, lease, part.offset) for part in parts]


def write(target: memoryview, parts: Iterable[FieldLayout], batch: HostBatch) -> None:
    """Write the fields of a batch into host memory at the offsets of their layouts."""
    for part, field in zip(parts, batch.fields, strict=True):
        if part.spec.size:
            view = np.ndarray(part.spec.dims, NUMPY[part.spec.dtype], target, part.offset)
            np.copyto(view, field.array, casting="equiv")
