"""Strategies over a device's raw memory: direct, a caching pool, one that is ordered by streams, and plugins' own."""

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
from fluidlite.platform.device_registry import Unit, returned

PATIENCE = 500e-6
"""Seconds for which a context waits for another's queue, which may be idle and only slow to say so."""


class RawMemory:
    """A device's own memory: what strategies take blocks from and give them back to.

    Where the device's library pools by itself (``allocator.pooled``), it serves one allocator a
    context, so that a block is reused only in the order of its own queue.

    Attributes
    ----------
    context : Context
        Of the thread that chose the strategy.
    alignment : int
        Every block begins at a multiple of it.
    reserved : int
        Bytes held from the device.
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
        found = self._allocators.get(context)
        if found is None:
            for other in [known for known in self._allocators if known is not None and known.closed]:
                del self._allocators[other]
            index = self.unit.place.index
            made = self.unit.device.allocator(index)
            found = returned(f"allocator({index})", made, "allocate", "release")
            self._allocators[context if getattr(found, "pooled", False) else None] = found
        return found

    @property
    def pooled(self) -> bool:
        """Whether the device's library pools by itself."""
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
        """Give a block back to the device, once the device has finished with it."""
        self.reserved -= block.size
        block.views.clear()
        if self.unit.lost is None:
            block.allocator.release(block.handle)

    def trim(self) -> None:
        """Let the library's pools give back what they keep."""
        for allocator in self._allocators.values():
            trim = getattr(allocator, "trim", None)
            if trim is not None:
                trim()


class Strategy:
    """How a place gets blocks and gives them back. A subclass defines :meth:`take` and :meth:`give`.

    Its methods are called by one thread at a time. The framework counts, waits for other contexts' events before it
    gives a block back, retries after :meth:`trim`, and reports what is out of memory.

    Parameters
    ----------
    raw : RawMemory
        Blocks come from ``raw.take(nbytes, context)`` and go back with ``raw.give(block)``.

    Attributes
    ----------
    name : str
        Under which it was chosen.
    allocation : type
        Of what its blocks are held by.
    bump : Bump or None
        What :func:`fluidlite.memory.reset` takes back, where that can be.
    caches : bool
        Whether it keeps blocks that were given back: what that may be is bounded, and :meth:`trim` lets go of it.
    """

    name = ""
    allocation: Callable[..., Allocation] = Allocation
    bump: Bump | None = None
    caches = False

    def __init__(self, raw: RawMemory) -> None:
        self.raw = raw

    @property
    def reserved(self) -> int:
        """Bytes held from the device."""
        return self.raw.reserved

    def size_of(self, nbytes: int) -> int:
        """What ``nbytes`` are rounded up to, a multiple of the alignment above 0: an eighth is lost at most."""
        return size_class(nbytes, self.raw.alignment)

    def take(self, nbytes: int, context: Context) -> Block:
        """Return a block of ``nbytes``, as :meth:`size_of` gave them, for the work of a context.

        Raises
        ------
        MemoryError
            Then what is kept is trimmed, and it is asked once more.
        """
        raise NotImplementedError(f"{type(self).__name__} must define take")

    def give(self, block: Block) -> None:
        """Take a block back; the device has finished with it, or will before its own context's next work."""
        raise NotImplementedError(f"{type(self).__name__} must define give")

    def trim(self) -> None:
        """Give what is kept back to the device."""
        self.raw.trim()

    def close(self) -> None:
        """Give all back: another strategy follows, and nothing is allocated."""
        self.trim()


class Direct(Strategy):
    """Each block is allocated and released at the device."""

    name = "direct"

    def take(self, nbytes: int, context: Context) -> Block:
        return self.raw.take(nbytes, context)

    def give(self, block: Block) -> None:
        self.raw.give(block)


def size_class(nbytes: int, alignment: int) -> int:
    """Round up so that at most an eighth is lost: to ``alignment``, or to an eighth of the power of two below."""
    step = max(alignment, 1 << max(nbytes.bit_length() - 4, 0))
    step = -(-step // alignment) * alignment
    return -(-max(nbytes, 1) // step) * step


class CachingPool(Strategy):
    """Keeps freed blocks by context and size class; reuse on the same context costs a list operation.

    Another context gets a block once its owner's queue has done what it had to do when it was asked for. The lists
    hang on the contexts (``context.spare_blocks``), which the place's memory looks at first.
    """

    name = "pool"
    caches = True
    waits = False
    """Whether a context waits on its device for another's queue, to have its block."""

    def __init__(self, raw: RawMemory) -> None:
        super().__init__(raw)
        self._contexts: list[Context] = []
        self._orphans: dict[int, list[Block]] = {}

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
        block = orphans.pop() if orphans else self._of_others(nbytes, context) or self.raw.take(nbytes, context)
        block.context, block.home = context, mine
        return block

    def _of_others(self, nbytes: int, context: Context) -> Block | None:
        """Take over a block that another context does not use, in the order of their queues."""
        for other in self._contexts:
            spare = other.spare_blocks.get(nbytes) if other is not context else None
            if not spare or not other.lock.acquire(blocking=False):  # its thread is in a run, and may want our lock
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
    """Whether an event is done, or will be before a device would have found new memory."""
    end = perf_counter() + PATIENCE
    while not event.done():
        if perf_counter() > end:
            return False
        sleep(PATIENCE / 20)  # who tells of it may be a thread of this process
    return True


class StreamOrdered(CachingPool):
    """The pool, but that a context takes another's block at once, and its queue waits for the other's on the device."""

    name = "stream"
    waits = True


def default_strategy(unit: Unit, context: Context) -> Strategy:
    """The library's own pool where it has one, else ours."""
    raw = RawMemory(unit, context)
    return Direct(raw) if raw.pooled else CachingPool(raw)


Factory = TypeVar("Factory", bound=Callable[..., Strategy])


class NamedStrategy(NamedTuple):
    name: str
    make: Callable[..., Strategy]
    origin: str


class StrategyRegistry:
    def __init__(self) -> None:
        self._known: dict[str, NamedStrategy] = {}

    def add(self, strategy: NamedStrategy) -> None:
        """Register a strategy; the same name twice is an error."""
        other = self._known.setdefault(strategy.name, strategy)
        if other is not strategy:
            raise RegistryError(
                f"the allocation strategy {strategy.name!r} is registered twice: at {other.origin} and at "
                f"{strategy.origin}\n  Do: give it another name"
            )

    def remove(self, strategy: NamedStrategy) -> None:
        """Take it out again; places that use it go on."""
        if self._known.get(strategy.name) is strategy:
            del self._known[strategy.name]

    def make(self, name: str, raw: RawMemory, options: dict[str, Any]) -> Strategy:
        """Make the strategy of that name for a place.

        Raises AllocationError if there is none, or it does not take these options.
        """
        known = self._known.get(name)
        if known is None:
            raise AllocationError(f"{name!r} is not an allocation strategy; use one of {', '.join(self._known)}")
        try:
            made = known.make(raw, **options)
        except TypeError as exc:
            raise AllocationError(f"the allocation strategy {name!r} cannot be made so: {exc}") from exc
        if not isinstance(made, Strategy):
            raise AllocationError(f"the allocation strategy {name!r} ({known.origin}) made {made!r}, no Strategy")
        made.name = name
        return made


strategies = StrategyRegistry()


def register_strategy(name: str) -> Callable[[Factory], Factory]:
    """Register a class of :class:`Strategy`, or what makes one, under a name for ``memory.set_strategy``.

    It is called with a :class:`RawMemory`, and with the options that ``set_strategy`` was given.

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
        if plugin is None or plugin in plugin_modules.loaded:  # else the plugin brings it when it is loaded
            strategies.add(named)
        return make

    return decorate


for _strategy in (Direct, CachingPool, StreamOrdered):
    strategies.add(NamedStrategy(_strategy.name, _strategy, __name__))
