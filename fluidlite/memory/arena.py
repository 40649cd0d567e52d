"""Arena: a bump allocator over one block, reset as a whole (what Ginn calls a preallocated device)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fluidlite.base.errors import AllocationError, OutOfMemoryError
from fluidlite.base.fork import new_lock
from fluidlite.base.forwarded import forwarded
from fluidlite.base.invalidation import cache_version
from fluidlite.memory.allocation import NO_FINALIZER, Block
from fluidlite.memory.bump import Bump, BumpAllocation
from fluidlite.memory.place_memory import PlaceMemory
from fluidlite.memory.strategies import NamedStrategy, RawMemory, Strategy, strategies
from fluidlite.platform.context import Context

MAX_ARENA_ARRAYS = 16384
"""Array objects that an arena caches."""
_using = threading.local()
_open_lock = new_lock()
_open = 0


class ArenaAllocation(BumpAllocation):
    """Memory of an :class:`Arena`, which owns the block.

    Attributes
    ----------
    arena : Arena
    """

    __slots__ = ("_arena_block", "arena")
    arena: Arena

    def __init__(self, arena: Arena, generation: int, nbytes: int, context: Context, offset: int) -> None:
        # Allocation.__init__ inlined: one is created for each value of each graph
        self.arena = arena
        self.memory = arena.memory
        self.bump = arena.bump
        self.generation = generation
        self._arena_block = arena.block
        self.nbytes = nbytes
        self.offset = offset
        self.context = context
        self.owned = False
        self.users = None
        self.sharing = None
        self.version = 0
        self.exports = None
        self.finalizer = NO_FINALIZER

    @property
    def block(self) -> Block | None:  # type: ignore[override]  # a reset invalidates it without a callback
        """The arena's block; None once that was reset or closed."""
        return self._arena_block if self.generation == self.bump.generation else None

    def part(self, at: int, nbytes: int) -> ArenaAllocation:
        """A part of it that begins at a byte; it becomes stale together with this."""
        return ArenaAllocation(self.arena, self.generation, nbytes, self.context, self.offset + at)

    def cached_array(self, uid: int) -> Any:
        """The cached array object at this offset, or None."""
        return self.arena.arrays.get((self.offset, uid))

    def array_cache(self, uid: int) -> tuple[dict[Any, Any], Any, int] | None:
        """The cache by offset and spec: allocations after a reset often repeat those before it."""
        self.live_block()
        return self.arena.arrays, (self.offset, uid), MAX_ARENA_ARRAYS


class Arena:
    """Preallocated memory of one place with a bump pointer.

    An allocation costs a pointer increment, and is aligned as the device requires. One that does not fit leaves the
    arena unchanged. Freeing it does nothing; :meth:`reset` frees all, and tensors that outlive it raise when they are
    used.

    Parameters
    ----------
    memory : PlaceMemory
    nbytes : int
        Its size.
    context : Context
        The context whose work uses it.

    Attributes
    ----------
    used, size : int
        Allocated bytes with alignment padding, and all bytes.
    payload : int
        Requested bytes.
    generation : int
        The number of resets.
    """

    def __init__(self, memory: PlaceMemory, nbytes: int, context: Context) -> None:
        self.memory = memory
        self.place = memory.place
        self.context = context
        self.allocation = memory.alloc(nbytes, context)
        self.block = self.allocation.live_block()
        self.arrays: dict[tuple[int, int], Any] = {}
        """Cached array objects by offset and spec."""
        self._offset = self.allocation.offset
        self.bump = Bump(nbytes, memory.alignment)
        if isinstance(self.allocation, BumpAllocation):  # the place itself uses an arena
            self.allocation.bump.holders.add(self)

    size: int = forwarded("bump.size", "Its bytes.")
    used: int = forwarded("bump.used", "Allocated bytes with alignment padding.")
    payload: int = forwarded("bump.payload", "Requested bytes.")
    generation: int = forwarded("bump.generation", "The number of resets.")

    def fits(self, nbytes: int) -> bool:
        """Whether ``nbytes`` are left after alignment."""
        used, alignment = self.bump.used, self.bump.alignment
        return -(-used // alignment) * alignment + nbytes <= self.bump.size

    def alloc(self, nbytes: int, context: Context | None = None, payload: int | None = None) -> ArenaAllocation:
        """Allocate ``nbytes`` for the work of a context; default: the arena's own.

        ``payload``: the requested bytes of an allocation that holds several with padding; default: ``nbytes``.

        Raises
        ------
        OutOfMemoryError
            If fewer bytes are left; the arena is unchanged.
        """
        if type(nbytes) is not int or nbytes < 0:
            raise AllocationError(f"cannot allocate {nbytes!r} bytes of an arena on {self.place}")
        context = context or self.context
        generation = self.bump.generation  # read it first, so that a concurrent reset makes the result stale
        offset = self.bump.allocate(nbytes, context, payload)
        if offset is None:
            raise OutOfMemoryError(
                f"arena on {self.place} is full: asked for {nbytes:,} bytes, used {self.used:,} of {self.size:,}"
                "\n  Do: reset() it between steps, or make it larger"
            )
        return ArenaAllocation(self, generation, nbytes, context, self._offset + offset)

    def reset(self) -> None:
        """Free everything at once; later uses of previous allocations raise.

        Executables that are linked to its memory are relinked at their next call.

        Raises
        ------
        AllocationError
            In the middle of a run of this thread.
        """
        self.bump.reset()

    def release(self) -> None:
        """Invalidate all allocations, since the arena's own memory was invalidated by a reset."""
        self.bump.invalidate()
        self.bump.size = 0
        self.arrays.clear()

    def close(self) -> None:
        """Reset, and free the block itself."""
        self.reset()
        self.bump.size = 0
        self.arrays.clear()
        if self.allocation.block is not None:
            self.memory.free(self.allocation)

    @contextmanager
    def __call__(self) -> Iterator[Arena]:
        """``with arena():`` this thread allocates from the arena on its place, also in runs."""
        global _open
        stack: list[Arena] = _using.__dict__.setdefault("stack", [])
        stack.append(self)
        with _open_lock:
            _open += 1
        cache_version.invalidate()
        try:
            yield self
        finally:
            stack.remove(self)
            with _open_lock:
                _open -= 1
            cache_version.invalidate()

    def __repr__(self) -> str:
        return f"Arena({self.used:,} of {self.size:,} bytes on {self.place})"


def arenas_in_use() -> bool:
    """Whether any thread is inside ``with arena():`` (cheap, for the fast path)."""
    return _open > 0


def current_arena(memory: PlaceMemory) -> Arena | None:
    """The innermost arena that this thread uses for a place, or None."""
    for arena in reversed(getattr(_using, "stack", ())):
        if arena.memory is memory:
            innermost: Arena = arena
            return innermost
    return None


class StrategyPiece(BumpAllocation):
    """Memory of a place with the arena strategy."""

    __slots__ = ()
    recyclable = True  # a reset drops the tensors that runs reuse

    def __init__(self, memory: PlaceMemory, block: Block, nbytes: int, context: Context, offset: int) -> None:
        super().__init__(memory, block, nbytes, context, offset)
        assert memory.strategy.bump is not None
        memory.strategy.bump.register(self)


class ArenaStrategy(Strategy):
    """All memory of a place is one arena: an allocation is a pointer increment, and ``memory.reset`` frees all.

    Parameters
    ----------
    raw : RawMemory
    nbytes : int
        The size of the arena.
    """

    name = "arena"
    allocation = StrategyPiece
    bump: Bump

    def __init__(self, raw: RawMemory, nbytes: int) -> None:
        super().__init__(raw)
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 1:
            raise AllocationError(f"an arena's nbytes is {nbytes!r}; expected a number of bytes")
        size = -(-nbytes // raw.alignment) * raw.alignment
        try:
            self._block = raw.take(size, raw.context)
        except MemoryError as exc:
            raise OutOfMemoryError(f"no arena of {nbytes:,} bytes on {raw.unit.place}: {exc}") from exc
        self.bump = Bump(nbytes, raw.alignment)

    def size_of(self, nbytes: int) -> int:
        return nbytes

    def take(self, nbytes: int, context: Context) -> Block:
        used_before = self.bump.used
        offset = self.bump.allocate(nbytes, context)
        if offset is None:
            raise MemoryError(
                f"the arena is full: used {self.bump.used:,} of {self.bump.size:,}; memory.reset() takes all back"
            )
        block = self._block
        padded = offset + nbytes - used_before  # alignment padding before it counts as its own
        return Block(block.handle, padded, block.allocator, context, offset)

    def give(self, block: Block) -> None:
        """Does nothing: the next reset frees it."""

    def trim(self) -> None:
        """Does nothing: the block is the arena."""

    def close(self) -> None:
        self.raw.give(self._block)


strategies.add(NamedStrategy(ArenaStrategy.name, ArenaStrategy, __name__))
