"""Staging: the host memory in which a collective operator's numbers lie while it is under way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.kernel_support import HALVES, Work
from fluidlite.plugin import Context, Span, numpy_dtype

Array = np.ndarray[Any, Any]
Key = tuple[int, int]

_local = threading.local()


class Bucket:
    """Several tensors of one dtype behind each other on the host.

    Half types are reduced as float32: MPI has none.

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
        """The bytes of the ``i``-th tensor."""
        return self.flat[self.slices[i]].view(np.uint8).data

    def fill(self, context: Context, spans: Sequence[Span]) -> None:
        """Begin to copy tensors from a place; finished after the context's next wait or event."""
        for i, span in enumerate(spans):
            if span.nbytes:
                context.copy_out(self.part(i), span)

    def widened(self) -> Array:
        """What is reduced; call it when the copies are there."""
        if self.reduced is not self.flat:
            self.reduced[...] = self.flat
        return self.reduced

    def empty(self, context: Context, i: int, span: Span) -> None:
        """Copy the ``i``-th result to a place."""
        if self.reduced is not self.flat:
            self.flat[self.slices[i]] = self.reduced[self.slices[i]]
        if span.nbytes:
            context.copy_in(span, self.part(i))


class UnderWay:
    """What a thread has begun on a ring, by where the tensors lie, until somebody waits for it."""

    def __init__(self) -> None:
        self._work: dict[tuple[int, Key], tuple[Work, Bucket, int]] = {}

    def add(self, ring: int, spans: Sequence[Span], work: Work, bucket: Bucket) -> None:
        """Note that tensors are being reduced. What was left at such an address, by a run that failed, is forgotten."""
        for i, span in enumerate(spans):
            self._work[ring, key_of(span)] = work, bucket, i

    def take(self, ring: int, span: Span) -> tuple[Work, Bucket, int] | None:
        """What was begun for a tensor; None if nothing was."""
        return self._work.pop((ring, key_of(span)), None)


def key_of(span: Span) -> Key:
    """Where a tensor lies."""
    return id(span.handle), span.offset


def under_way(context: Context) -> UnderWay:
    """What was begun on a context's queue."""
    found: UnderWay = context.handle("collectives", UnderWay)
    return found
