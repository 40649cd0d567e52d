"""Device memory: an arena with its own addresses, a first-fit free list, and bounds checks."""

from __future__ import annotations

import mmap
from bisect import bisect_right, insort

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
BASE = 0x4000_0000
"""Address of the first byte; 0 is never a valid address."""


class OutOfMemory(Exception):
    """No free range is large enough."""


class MemoryFault(Exception):
    """An address range is not inside an allocated block."""


class Memory:
    """The board's memory. The operating system commits pages as they are touched.

    Parameters
    ----------
    capacity : int
        Size in bytes, rounded down to the alignment.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity // ALIGNMENT * ALIGNMENT
        self._bytes: NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, max(self.capacity, 1)), np.uint8)
        self._free = [(BASE, self.capacity)]  # (address, size), by address; adjacent ranges are merged
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        """Allocate from the first free range that is large enough; return the address."""
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        for i, (start, free) in enumerate(self._free):
            if free >= size:
                self._free[i : i + 1] = [(start + size, free - size)] if free > size else []
                insort(self._starts, start)
                self._sizes[start] = size
                return start
        total = sum(free for _, free in self._free)
        largest = max((free for _, free in self._free), default=0)
        raise OutOfMemory(
            f"{nbytes} bytes asked, {total} of {self.capacity} bytes are free, the largest free range has {largest}"
        )

    def release(self, address: int) -> None:
        """Free a block and merge it with its free neighbours."""
        if address not in self._sizes:
            raise MemoryFault(f"{address:#x} is not the start of an allocated block")
        start, size = address, self._sizes.pop(address)
        del self._starts[bisect_right(self._starts, address) - 1]
        i = bisect_right(self._free, (start, 0))
        if i < len(self._free) and self._free[i][0] == start + size:
            size += self._free.pop(i)[1]
        if i and sum(self._free[i - 1]) == start:
            i -= 1
            previous = self._free.pop(i)
            start, size = previous[0], size + previous[1]
        self._free.insert(i, (start, size))

    def view(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the bytes of a range, which must be inside one block; an empty range may be anywhere."""
        if not nbytes:
            return self._bytes[:0]
        i = bisect_right(self._starts, address) - 1
        if i < 0 or address + nbytes > self._starts[i] + self._sizes[self._starts[i]]:
            raise MemoryFault(f"memory fault: {nbytes} bytes at {address:#x} do not lie in one allocated block")
        return self._bytes[address - BASE : address - BASE + nbytes]
