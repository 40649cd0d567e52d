"""Regions: where the results of a linked run lie, a region for each device; its memory is taken when all is known.

Until then an address is an offset in a region: the number of the region stands in its upper bits. A preallocated device
is counted as node by node: each result is a piece of its own, at a multiple of the alignment.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from fluidlite.memory import memory_of
from fluidlite.memory.allocation import Allocation
from fluidlite.nodes.devices import Device, Prealloc
from fluidlite.platform.context import Context
from fluidlite.platform.kernel_language import REGION_BIT

SCRATCH = 1 << REGION_BIT
"""Where what is forgotten begins: region 1. What is in region 0 is an address."""
OFFSET = SCRATCH - 1
MAX_REGIONS = 120


class Region:
    """Memory of one device in a run.

    ``cursor``: where the next result lies.
    ``counted``: whether the device counts each result.
    ``sizes``: bytes of the results, if they are counted.
    """

    __slots__ = ("counted", "cursor", "dev", "number", "sizes")

    def __init__(self, dev: Device, number: int) -> None:
        self.dev = dev
        self.number = number
        self.cursor = number << REGION_BIT
        self.counted = dev.precedence > 0
        self.sizes: list[int] = []

    def take(self, nbytes: int, alignment: int) -> int:
        """Put a result there; return where it lies."""
        found = self.cursor
        self.cursor = found + -(-nbytes // alignment) * alignment
        if self.counted:
            self.sizes.append(nbytes)
        return found


class Regions:
    """The regions of a run.

    ``before``: the memory of regions of an earlier run that this one reads; its own are numbered from there on.
    ``memory``: of each region, once it is taken.
    ``alignment``: of results.
    """

    __slots__ = ("_context", "_forgotten", "_open", "alignment", "memory")

    def __init__(self, context: Context, before: Sequence[Allocation | None] = (None, None)) -> None:
        self._context = context
        self.alignment = context.unit.info.alignment
        self._forgotten = 0  # where in its memory what is forgotten begins
        self._open: dict[Device, Region] = {}
        self.memory: list[Allocation | None] = list(before)

    def of(self, dev: Device) -> Region | None:
        """The region of a device, or None if that has other memory, or there are too many."""
        found = self._open.get(dev)
        if found is None:
            if dev.place != self._context.place or len(self.memory) >= MAX_REGIONS:
                return None
            found = self._open[dev] = Region(dev, len(self.memory))
            self.memory.append(None)
        return found

    def take(self, scratch: int) -> bool:
        """Take the memory of all, and so many bytes of what is forgotten; False if a preallocated device has less.

        Then nothing changes.
        """
        preallocated = []
        for region in self._open.values():
            dev, nbytes = region.dev, region.cursor & OFFSET
            if isinstance(dev, Prealloc):
                if region.sizes:
                    preallocated.append((dev.arena, region, nbytes - -region.sizes[-1] % self.alignment))
            elif scratch:  # one piece is taken sooner than two
                self.memory[region.number] = self.memory[1] = dev.allocation(nbytes + scratch, self._context)
                self._forgotten, scratch = nbytes, 0
            else:
                self.memory[region.number] = dev.allocation(nbytes, self._context)
        for arena, _, nbytes in preallocated:
            if not arena.fits(nbytes):
                return False
        for arena, region, nbytes in preallocated:
            self.memory[region.number] = arena.alloc(nbytes, self._context, sum(region.sizes))
        if scratch:
            self.memory[1] = memory_of(self._context.place, self._context).alloc(scratch, self._context)
        return True

    def bases(self) -> array[int]:
        """Where each region begins."""
        found = array("q", [each.address() if each is not None else 0 for each in self.memory])
        found[1] += self._forgotten
        return found
