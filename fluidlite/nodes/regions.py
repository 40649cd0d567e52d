"""Regions: the memory of the results of a linked run, one region for each device, allocated when all sizes are known.

Until then an address is an offset in a region, with the number of the region in its upper bits. On a preallocated
device, usage is counted as in node-by-node runs: each result is a separate piece, at a multiple of the alignment.
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
"""The start of region 1, the scratch memory of intermediate values. Values in region 0 are machine addresses."""
OFFSET_MASK = SCRATCH - 1  # selects the offset in a region
MAX_REGIONS = 120  # of one run; their numbers are the upper bits of addresses


class Region:
    """Memory of one device in a run.

    ``cursor``: the address of the next result.
    ``counted``: whether the device counts the bytes of each result.
    ``sizes``: bytes of the results, if they are counted.
    """

    __slots__ = ("counted", "cursor", "dev", "number", "sizes")

    def __init__(self, dev: Device, number: int) -> None:
        self.dev = dev
        self.number = number
        self.cursor = number << REGION_BIT
        self.counted = dev.precedence > 0
        self.sizes: list[int] = []

    def reserve(self, nbytes: int, alignment: int) -> int:
        """Reserve memory for a result; return its address."""
        address = self.cursor
        self.cursor = address + -(-nbytes // alignment) * alignment
        if self.counted:
            self.sizes.append(nbytes)
        return address


class Regions:
    """The regions of a run.

    ``before``: the memory of the regions of an earlier run that this one reads; new regions are numbered after them.
    ``memory``: the allocation of each region, once it is made.
    ``alignment``: of results.
    """

    __slots__ = ("_context", "_device_regions", "_scratch_offset", "alignment", "memory")

    def __init__(self, context: Context, before: Sequence[Allocation | None] = (None, None)) -> None:
        self._context = context
        self.alignment = context.unit.info.alignment
        self._scratch_offset = 0  # in the allocation of region 1
        self._device_regions: dict[Device, Region] = {}
        self.memory: list[Allocation | None] = list(before)

    def of(self, dev: Device) -> Region | None:
        """The region of a device, or None if that is on another place, or there are too many regions."""
        region = self._device_regions.get(dev)
        if region is None:
            if dev.place != self._context.place or len(self.memory) >= MAX_REGIONS:
                return None
            region = self._device_regions[dev] = Region(dev, len(self.memory))
            self.memory.append(None)
        return region

    def allocate(self, scratch: int) -> bool:
        """Allocate all regions and ``scratch`` bytes; False, without effect, if a preallocated device has less."""
        preallocated = []
        for region in self._device_regions.values():
            dev, nbytes = region.dev, region.cursor & OFFSET_MASK
            if isinstance(dev, Prealloc):
                if region.sizes:
                    preallocated.append((dev.arena, region, nbytes - -region.sizes[-1] % self.alignment))
            elif scratch:  # one allocation is faster than two
                self.memory[region.number] = self.memory[1] = dev.allocation(nbytes + scratch, self._context)
                self._scratch_offset, scratch = nbytes, 0
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
        """The start address of each region."""
        addresses = array("q", [allocation.address() if allocation is not None else 0 for allocation in self.memory])
        addresses[1] += self._scratch_offset
        return addresses
