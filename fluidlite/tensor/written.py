"""The memory that a run writes: feeds that alias it are copied before the run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from fluidlite.memory.allocation import Allocation
from fluidlite.platform.context_pool import get_context
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.transfer import transfer


class Written:
    """The allocations that a run writes."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        ranges = sorted([_range(tensor.allocation) for tensor in tensors if tensor.allocation is not None])
        begins, ends = zip(*ranges, strict=True) if ranges else ((), ())
        self._begins = begins
        self._ends = tuple(accumulate(ends, max))  # the maximum end of all ranges up to this one

    def __bool__(self) -> bool:
        return bool(self._begins)

    def without_alias(self, feed: Tensor) -> Tensor:
        """Return the fed tensor, or a copy if it shares memory with the written tensors."""
        if not self._begins or feed.allocation is None or feed.place is None:
            return feed
        begin, end = _range(feed.allocation)
        before = bisect_left(self._begins, end)
        if not before or self._ends[before - 1] <= begin:
            return feed
        return transfer(feed, get_context(feed.place))


def _range(allocation: Allocation) -> tuple[int, int]:
    """The range of an allocation's addresses. Handles without an address get distinct, far-apart ranges."""
    block = allocation.block
    if block is None:
        return 0, 0
    begin = (block.address if block.address is not None else id(block.handle) << 64) + allocation.offset
    return begin, begin + allocation.nbytes
