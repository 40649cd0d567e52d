"""Strategies over a device's raw memory: direct, and a caching pool."""

from __future__ import annotations

from typing import Any, Protocol

from fluidlite.memory.allocation import Block
from fluidlite.platform.context import Context
from fluidlite.platform.devices import Unit


class Strategy(Protocol):
    """How blocks are got and given back; called under the place's lock."""

    name: str

    @property
    def reserved(self) -> int:
        """Bytes held from the device."""
        ...

    def allocator(self, context: Context | None) -> Any:
        """The raw allocator that serves a context."""
        ...

    def take(self, nbytes: int, context: Context) -> Block:
        """Return a block of at least ``nbytes`` or raise MemoryError."""
        ...

    def give(self, block: Block) -> None:
        """Take a block back; the device has finished with it, or will before its own context's next work."""
        ...

    def trim(self) -> None:
        """Give what is cached back to the device."""
        ...


class Direct:
    """Each block is allocated and released at the device.

    Where the device's library pools by itself (``allocator.pooled``), it serves one allocator a
    context, so that a block is reused only in the order of its own queue.
    """

    name = "direct"

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.reserved = 0
        self._allocators: dict[Context | None, Any] = {}

    def allocator(self, context: Context | None) -> Any:
        """The raw allocator that serves a context."""
        shared = self._allocators.get(None)
        if shared is not None:
            return shared
        found = self._allocators.get(context)
        if found is None:
            for other in [known for known in self._allocators if known is not None and known.closed]:
                del self._allocators[other]
            found = self.unit.device.allocator(self.unit.place.index)
            pooled = getattr(found, "pooled", False)
            self._allocators[context if pooled else None] = found
        return found

    def take(self, nbytes: int, context: Context) -> Block:
        allocator = self.allocator(context)
        with context.guarded(f"allocating {nbytes} bytes"):
            handle = allocator.allocate(nbytes)
        self.reserved += nbytes
        return Block(handle, nbytes, allocator, context)

    def give(self, block: Block) -> None:
        self.reserved -= block.size
        block.views.clear()
        if self.unit.lost is None:
            block.allocator.release(block.handle)

    def trim(self) -> None:
        for allocator in self._allocators.values():
            trim = getattr(allocator, "trim", None)
            if trim is not None:
                trim()


def size_class(nbytes: int, alignment: int) -> int:
    """Round up so that at most an eighth is lost: to ``alignment``, or to an eighth of the power of two below."""
    step = max(alignment, 1 << max(nbytes.bit_length() - 4, 0))
    step = -(-step // alignment) * alignment
    return -(-max(nbytes, 1) // step) * step


class CachingPool:
    """Keeps freed blocks by context and size class; reuse on the same context costs a list operation.

    The lists hang on the contexts (``context.spare_blocks``), which the place's memory looks at first.
    """

    name = "pool"

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self._raw = Direct(unit)
        self._contexts: list[Context] = []
        self._orphans: dict[int, list[Block]] = {}

    @property
    def reserved(self) -> int:
        """Bytes held from the device."""
        return self._raw.reserved

    def allocator(self, context: Context | None) -> Any:
        """The raw allocator that serves a context."""
        return self._raw.allocator(context)

    def take(self, nbytes: int, context: Context) -> Block:
        if context not in self._contexts:
            self._adopt_orphans()
            self._contexts.append(context)
        mine: list[Block] = context.spare_blocks.setdefault(nbytes, [])
        if mine:
            return mine.pop()
        if any(other.closed for other in self._contexts):
            self._adopt_orphans()
        orphans = self._orphans.get(nbytes)
        block = orphans.pop() if orphans else self._raw.take(nbytes, context)
        block.context, block.home = context, mine
        return block

    def _adopt_orphans(self) -> None:
        """Take over the blocks of contexts that have closed: their work is done, anybody may have them."""
        for context in [known for known in self._contexts if known.closed]:
            for size, blocks in context.spare_blocks.items():
                self._orphans.setdefault(size, []).extend(blocks)
                blocks.clear()
            self._contexts.remove(context)

    def give(self, block: Block) -> None:
        if block.context is not None and block.context.closed:
            block.home = self._orphans.setdefault(block.size, [])
        assert block.home is not None
        block.home.append(block)

    def trim(self) -> None:
        self._adopt_orphans()
        for context in self._contexts:
            if self.unit.lost is None:
                context.wait()  # a cached block may still be read by work in flight
            self._release(context.spare_blocks)
        self._release(self._orphans)
        self._raw.trim()

    def _release(self, lists: dict[int, list[Block]]) -> None:
        for blocks in lists.values():
            for block in blocks:
                self._raw.give(block)
            blocks.clear()


def default_strategy(unit: Unit, context: Context) -> Strategy:
    """The library's own pool where it has one, else ours."""
    probe = Direct(unit)
    if getattr(probe.allocator(context), "pooled", False):
        return probe
    return CachingPool(unit)
