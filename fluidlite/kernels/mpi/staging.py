"""Staging: the host memory that a collective operator reads and writes while it runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.kernel_support import HALVES, Work
from fluidlite.plugin import Context, Span, numpy_dtype

Array = np.ndarray[Any, Any]
MemoryKey = tuple[int, int]

_local = threading.local()


class Bucket:
    """Tensors of one dtype, concatenated in host memory.

    Half types are reduced as float32, because MPI has no half types.

    ``sizes``: elements of each tensor.
    """

    def __init__(self, dtype: str, sizes: Sequence[int]) -> None:
        self.dtype = numpy_dtype(dtype)
        self.wide = np.dtype(np.float32) if dtype in HALVES else self.dtype
        ends = np.cumsum([0, *sizes])
        self.slices = [slice(int(first), int(last)) for first, last in pairwise(ends)]
        self.flat: Array = np.empty(int(ends[-1]), self.dtype)
        self.reduced = self.flat if self.wide == self.dtype else np.empty(int(ends[-1]), self.wide)

    def part(self, i: int) -> memoryview:
        """Return the bytes of the ``i``-th tensor."""
        return self.flat[self.slices[i]].view(np.uint8).data

    def fill(self, context: Context, spans: Sequence[Span]) -> None:
        """Start to copy tensors from a device; the copies end by the context's next wait or event."""
        for i, span in enumerate(spans):
            if span.nbytes:
                context.copy_out(self.part(i), span)

    def widened(self) -> Array:
        """Return the array to reduce; call it after the copies have ended."""
        if self.reduced is not self.flat:
            self.reduced[...] = self.flat
        return self.reduced

    def empty(self, context: Context, i: int, span: Span) -> None:
        """Copy the ``i``-th result to a device."""
        if self.reduced is not self.flat:
            self.flat[self.slices[i]] = self.reduced[self.slices[i]]
        if span.nbytes:
            context.copy_in(span, self.part(i))


class PendingWork:
    """The collectives of a queue that have started and not been waited for, by ring and memory of the tensors."""

    def __init__(self) -> None:
        self._work: dict[tuple[int, MemoryKey], tuple[Work, Bucket, int]] = {}

    def add(self, ring: int, spans: Sequence[Span], work: Work, bucket: Bucket) -> None:
        """Add the reduction of tensors. It replaces an entry of the same memory, which a failed run left."""
        for i, span in enumerate(spans):
            self._work[ring, key_of(span)] = work, bucket, i

    def take(self, ring: int, span: Span) -> tuple[Work, Bucket, int] | None:
        """Remove and return the pending collective of a tensor; None if it has none."""
        return self._work.pop((ring, key_of(span)), None)


def key_of(span: Span) -> MemoryKey:
    """Return the key of a tensor's memory."""
    return id(span.handle), span.offset


def pending_work(context: Context) -> PendingWork:
    """Return the pending collectives of a context's queue."""
    pending: PendingWork = context.handle("collectives", PendingWork)
    return pending
