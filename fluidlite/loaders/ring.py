"""The ring: buffers on a place that are filled by a queue of their own, lent to the caller, and filled again.

A buffer holds all fields of a batch, one after another, so that a batch is one copy. Whoever holds a tensor of it
holds its lease; with the last reference the lease ends, and the buffer goes back together with the contexts that have
read it. It is written again after what those had enqueued by then.
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
_kept: deque[tuple[Event, Any]] = deque()
"""Staging memory of rings that Python collected, and after which event nobody reads it."""
DONE = DoneEvent()


def copy_queue(place: Place) -> Context:
    """The queue of a place that the copies of all loaders go through; nothing else does."""
    unit = devices.unit(place)
    with _lock:
        found = _copy_queues.get(unit)
        if found is None or found.closed:
            for gone in [known for known in _copy_queues if known.removed]:
                del _copy_queues[gone]
            found = _copy_queues[unit] = new_context(place)
        return found


class Slot:
    """One buffer.

    ``allocation``: on the place; None: nothing was filled yet, or the ring is closed.
    ``donated``: its memory belongs to a caller who holds a batch: it does not come back.
    ``ready``: after it the batch is there.
    ``readers``: those who used its last batch.
    ``after``: what must be done before it is filled again.
    """

    __slots__ = ("after", "allocation", "donated", "readers", "ready", "staging")

    def __init__(self) -> None:
        self.allocation: Allocation | None = None
        self.staging: Any = None
        self.ready: Event = DONE
        self.readers: set[Context] = set()
        self.after: tuple[Event, ...] = ()
        self.donated = False


class Part(NamedTuple):
    """Where a field of a batch lies in its buffer."""

    name: str
    spec: Spec
    offset: int


class Lease(Allocation):
    """The memory of one batch, while somebody holds a tensor of it.

    ``context``: the one that reads it.
    ``ended``: gets the slot when the lease ends.
    """

    __slots__ = ("_base",)
    recyclable = False

    def __init__(self, slot: Slot, context: Context, ended: SimpleQueue[Any]) -> None:
        base = slot.allocation
        assert base is not None
        super().__init__(base.memory, base.live_block(), base.nbytes, context, base.offset, owned=False)
        self._base = base
        self.users = slot.readers = {context}
        self.at_end = partial(ended.put, slot)
        base.used_by(context)  # if this lease is the last reference, the pool waits for those who used it

    def used_by(self, context: Context) -> None:
        super().used_by(context)
        self._base.used_by(context)


class Ring:
    """Buffers on a place.

    ``context``: copies go through it; several threads may fill buffers side by side.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.place = context.place
        self.host = context.unit.info.host
        self._alignment = max(context.unit.info.alignment, 64)
        self.slots: list[Slot] = []

    def add(self) -> Slot:
        slot = Slot()
        self.slots.append(slot)
        return slot

    def donate(self, slot: Slot) -> Slot:
        """Leave a buffer to who holds its batch; return one that takes its place."""
        slot.donated = True
        slot.allocation = slot.staging = None
        self.slots.remove(slot)
        return self.add()

    def close(self, wait: bool = True) -> None:
        """Let go of all buffers; the memory of batches that somebody holds goes with these.

        Staging memory is read until the last copy is done. Without ``wait`` it is kept until a later ring sees that.
        """
        slots, self.slots = self.slots, []
        for slot in slots:
            slot.donated = True
            slot.allocation = None
            if not wait and not self.host:
                _kept.append((slot.ready, slot.staging))
        for _ in range(len(_kept) if wait else 0):
            event, staging = _kept.popleft()
            if not event.done():
                _kept.append((event, staging))
        for slot in slots if wait else ():
            slot.ready.wait()
            slot.staging = None

    def fill(self, slot: Slot, batch: HostBatch) -> list[Part]:
        """Write a batch into a buffer, after ``slot.after``; what comes after ``slot.ready`` finds it there.

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

    def _layout(self, batch: HostBatch) -> tuple[list[Part], int]:
        parts, offset = [], 0
        for field in batch.fields:
            spec = Spec.of(field.array.shape, field.dtype, field.lod)
            parts.append(Part(field.name, spec, offset))
            offset += -(-spec.nbytes // self._alignment) * self._alignment
        return parts, offset

    def lend(
        self, slot: Slot, parts: Iterable[Part], reader: Context, ended: SimpleQueue[Any]
    ) -> tuple[Lease, list[Tensor]]:
        """Tensors of a buffer, for a context whose later work finds the batch there."""
        if not self.host:
            with reader.lock:
                reader.wait_for(slot.ready)
        lease = Lease(slot, reader, ended)
        return lease, [Tensor.of(part.spec, self.place, lease, part.offset) for part in parts]


def write(target: memoryview, parts: Iterable[Part], batch: HostBatch) -> None:
    """Write the fields of a batch into host memory, where its parts say."""
    for part, field in zip(parts, batch.fields, strict=True):
        if part.spec.size:
            view = np.ndarray(part.spec.dims, NUMPY[part.spec.dtype], target, part.offset)
            np.copyto(view, field.array, casting="equiv")
