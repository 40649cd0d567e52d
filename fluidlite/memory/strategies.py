"""Allocation strategies over a device's raw memory: direct, caching pool, stream-ordered pool, and those of plugins."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any, NamedTuple, TypeVar

from fluidlite.base.errors import AllocationError, DeviceError, RegistryError
from fluidlite.base.plugin_modules import plugin_modules
from fluidlite.memory.allocation import Allocation, Block
from fluidlite.memory.bump import Bump
from fluidlite.platform.context import Context
from fluidlite.platform.device_context import Event
from fluidlite.platform.device_registry import Unit, checked_result

PATIENCE = 500e-6
"""Seconds that a context waits for the event of another one's queue, which may be idle already."""


class RawMemory:
    """The raw memory of a device, from which strategies allocate blocks.

    If the device's library has a pool (``allocator.pooled``), each context has an allocator of its own, so that a
    block is reused only in the order of its queue.

    Attributes
    ----------
    context : Context
        The context of the thread that chose the strategy.
    alignment : int
        The alignment of every block, in bytes.
    reserved : int
        Bytes allocated from the device.
    """

    def __init__(self, unit: Unit, context: Context) -> None:
        self.unit = unit
        self.context = context
        self.alignment = unit.info.alignment
        self.reserved = 0
        self._allocators: dict[Context | None, Any] = {}

    def allocator(self, context: Context | None) -> Any:
        """The raw allocator that serves a context."""
        shared = self._allocators.get(None)
        if shared is not None:
            return shared
        allocator = self._allocators.get(context)
        if allocator is None:
            for closed in [owner for owner in self._allocators if owner is not None and owner.closed]:
                del self._allocators[closed]
            index = self.unit.place.index
            created = self.unit.device.allocator(index)
            allocator = checked_result(f"allocator({index})", created, "allocate", "release")
            self._allocators[context if getattr(allocator, "pooled", False) else None] = allocator
        return allocator

    @property
    def pooled(self) -> bool:
        """Whether the device's library has a pool."""
        return bool(getattr(self.allocator(self.context), "pooled", False))

    def take(self, nbytes: int, context: Context) -> Block:
        """Return a new block of ``nbytes``, a multiple of the alignment, or raise MemoryError."""
        allocator = self.allocator(context)
        with context.guarded(f"allocating {nbytes} bytes"):
            handle = allocator.allocate(nbytes)
            if handle is None:
                raise DeviceError(f"allocate({nbytes}) returned None; expected a handle, or MemoryError")
            block = Block(handle, nbytes, allocator, context)
        self.reserved += nbytes
        return block

    def give(self, block: Block) -> None:
        """Release a block to the device, which has finished all work on it."""
        self.reserved -= block.size
        block.views.clear()
        if self.unit.lost is None:
            block.allocator.release(block.handle)

    def trim(self) -> None:
        """Trim the library's pools."""
        for allocator in self._allocators.values():
            trim = getattr(allocator, "trim", None)
            if trim is not None:
                trim()


class Strategy:
    """An allocation strategy of a place. A subclass defines :meth:`take` and :meth:`give`.

    Its methods are called by one thread at a time. The framework keeps statistics, waits for other contexts' events
    before it gives a block back, retries after :meth:`trim`, and reports out-of-memory errors.

    Parameters
    ----------
    raw : RawMemory
        Blocks are allocated with ``raw.take(nbytes, context)`` and released with ``raw.give(block)``.

    Attributes
    ----------
    name : str
        The name under which it was chosen.
    allocation : type
        The class of its allocations.
    bump : Bump or None
        The bump allocator that :func:`fluidlite.memory.reset` resets, if there is one.
    caches : bool
        Whether it caches free blocks; their bytes are bounded, and :meth:`trim` releases them.
    """

    name = ""
    allocation: Callable[..., Allocation] = Allocation
    bump: Bump | None = None
    caches = False

    def __init__(self, raw: RawMemory) -> None:
        self.raw = raw

    @property
    def reserved(self) -> int:
        """Bytes allocated from the device."""
        return self.raw.reserved

    def size_of(self, nbytes: int) -> int:
        """Round ``nbytes`` up to a positive multiple of the alignment; at most an eighth is padding."""
        return size_class(nbytes, self.raw.alignment)

    def take(self, nbytes: int, context: Context) -> Block:
        """Return a block of ``nbytes``, as :meth:`size_of` returned them, for the work of a context.

        Raises
        ------
        MemoryError
            The framework then calls :meth:`trim`, and tries once more.
        """
        raise NotImplementedError(f"{type(self).__name__} must define take")

    def give(self, block: Block) -> None:
        """Take a free block back. The device has finished with it, except for earlier work of its context."""
        raise NotImplementedError(f"{type(self).__name__} must define give")

    def trim(self) -> None:
        """Release cached blocks to the device."""
        self.raw.trim()

    def close(self) -> None:
        """Release all memory: the place changes its strategy, and nothing is allocated."""
        self.trim()


class Direct(Strategy):
    """Each block is allocated and released at the device."""

    name = "direct"

    def take(self, nbytes: int, context: Context) -> Block:
        return self.raw.take(nbytes, context)

    def give(self, block: Block) -> None:
        self.raw.give(block)


def size_class(nbytes: int, alignment: int) -> int:
    """Round up to a multiple of ``alignment``, or of an eighth of a power of two: at most an eighth is padding."""
    step = max(alignment, 1 << max(nbytes.bit_length() - 4, 0))
    step = -(-step // alignment) * alignment
    return -(-max(nbytes, 1) // step) * step


class CachingPool(Strategy):
    """Caches free blocks by context and size class; reuse by the same context costs a list operation.

    Another context gets a block after the queue of the owning context has finished its work on it. The free lists are
    in the contexts (``context.spare_blocks``), where the place's memory looks first.
    """

    name = "pool"
    caches = True
    waits = False
    """Whether a context that takes another's block waits for its queue on the device, instead of on the host."""

    def __init__(self, raw: RawMemory) -> None:
        super().__init__(raw)
        self._contexts: list[Context] = []
        self._orphans: dict[int, list[Block]] = {}

    def take(self, nbytes: int, context: Context) -> Block:
        if context not in self._contexts:
            self._adopt_orphans()
            self._contexts.append(context)
        free_list: list[Block] = context.spare_blocks.setdefault(nbytes, [])
        if free_list:
            return free_list.pop()
        if any(other.closed for other in self._contexts):
            self._adopt_orphans()
        orphans = self._orphans.get(nbytes)
        block = orphans.pop() if orphans else self._take_from_others(nbytes, context) or self.raw.take(nbytes, context)
        block.context, block.free_list = context, free_list
        return block

    def _take_from_others(self, nbytes: int, context: Context) -> Block | None:
        """Take over a free block of another context, ordered after the work in that context's queue."""
        for other in self._contexts:
            spare = other.spare_blocks.get(nbytes) if other is not context else None
            if not spare or not other.lock.acquire(blocking=False):  # its thread is in a run, and may wait for our lock
                continue
            try:
                event = other.record()
            finally:
                other.lock.release()
            if self.waits:
                context.wait_for(event)
            elif not _done_soon(event):
                continue
            block: Block = spare.pop()
            return block
        return None

    def _adopt_orphans(self) -> None:
        """Take over the blocks of closed contexts: their work is done, so any context may use them."""
        for context in [owner for owner in self._contexts if owner.closed]:
            for size, blocks in context.spare_blocks.items():
                self._orphans.setdefault(size, []).extend(blocks)
                blocks.clear()
            self._contexts.remove(context)

    def give(self, block: Block) -> None:
        if block.context is not None and block.context.closed:
            block.free_list = self._orphans.setdefault(block.size, [])
        assert block.free_list is not None
        block.free_list.append(block)

    def trim(self) -> None:
        self._adopt_orphans()
        for context in self._contexts:
            if self.raw.unit.lost is None:
                context.wait()  # a cached block may still be read by work in flight
            self._release(context.spare_blocks)
        self._release(self._orphans)
        self.raw.trim()

    def _release(self, lists: dict[int, list[Block]]) -> None:
        for blocks in lists.values():
            for block in blocks:
                self.raw.give(block)
            blocks.clear()


def _done_soon(event: Event) -> bool:
    """Whether an event is done, or becomes so sooner than a device would allocate new memory."""
    end = perf_counter() + PATIENCE
    while not event.done():
        if perf_counter() > end:
            return False
        sleep(PATIENCE / 20)  # a thread of this process may complete it
    return True


class StreamOrdered(CachingPool):
    """A caching pool whose contexts take each other's blocks at once: the queues wait for each other on the device."""

    name = "stream"
    waits = True


def default_strategy(unit: Unit, context: Context) -> Strategy:
    """The library's own pool if it has one, else :class:`CachingPool`."""
    raw = RawMemory(unit, context)
    return Direct(raw) if raw.pooled else CachingPool(raw)


Factory = TypeVar("Factory", bound=Callable[..., Strategy])


class NamedStrategy(NamedTuple):
    name: str
    make: Callable[..., Strategy]
    origin: str


class StrategyRegistry:
    def __init__(self) -> None:
        self._by_name: dict[str, NamedStrategy] = {}

    def add(self, strategy: NamedStrategy) -> None:
        """Register a strategy; the same name twice is an error."""
        other = self._by_name.setdefault(strategy.name, strategy)
        if other is not strategy:
            raise RegistryError(
                f"the allocation strategy {strategy.name!r} is registered twice: at {other.origin} and at "
                f"{strategy.origin}\n  Do: give it another name"
            )

    def remove(self, strategy: NamedStrategy) -> None:
        """Unregister a strategy; places that use it keep it."""
        if self._by_name.get(strategy.name) is strategy:
            del self._by_name[strategy.name]

    def make(self, name: str, raw: RawMemory, options: dict[str, Any]) -> Strategy:
        """Create the strategy of a name for a place.

        Raises AllocationError if there is none, or it does not accept the options.
        """
        registered = self._by_name.get(name)
        if registered is None:
            raise AllocationError(f"{name!r} is not an allocation strategy; use one of {', '.join(self._by_name)}")
        try:
            strategy = registered.make(raw, **options)
        except TypeError as exc:
            raise AllocationError(f"the allocation strategy {name!r} cannot be made so: {exc}") from exc
        if not isinstance(strategy, Strategy):
            raise AllocationError(
                f"the allocation strategy {name!r} ({registered.origin}) made {strategy!r}, no Strategy"
            )
        strategy.name = name
        return strategy


strategies = StrategyRegistry()


def register_strategy(name: str) -> Callable[[Factory], Factory]:
    """Register a subclass of :class:`Strategy`, or a factory, under a name for ``memory.set_strategy``.

    It is called with a :class:`RawMemory` and the options of ``set_strategy``.

    Raises
    ------
    RegistryError
        If the name is taken; both origins are named.
    """
    if not isinstance(name, str) or not name:
        raise RegistryError(f"register_strategy takes a name, got {name!r}")

    def decorate(make: Factory) -> Factory:
        frame = sys._getframe(1)
        named = NamedStrategy(name, make, f"{frame.f_code.co_filename}:{frame.f_lineno}")
        plugin = plugin_modules.declare(named, frame)
        if plugin is None or plugin in plugin_modules.loaded:  # else loading the plugin registers it
            strategies.add(named)
        return make

    return decorate


for _strategy in (Direct, CachingPool, StreamOrdered):
    strategies.add(NamedStrategy(_strategy.name, _strategy, __name__))
