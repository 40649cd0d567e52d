"""Arena: a bump pointer over one block, rewound as a whole (what Ginn calls a preallocated device)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fluidlite.base.errors import AllocationError, OutOfMemoryError
from fluidlite.base.fork import new_lock
from fluidlite.base.forwarded import forwarded
from fluidlite.base.invalidation import cache_version
from fluidlite.memory.allocation import NOTHING, Block
from fluidlite.memory.bump import Bump, Piece
from fluidlite.memory.place_memory import PlaceMemory
from fluidlite.memory.strategies import NamedStrategy, RawMemory, Strategy, strategies
from fluidlite.platform.context import Context

MAX_ARENA_ARRAYS = 16384
"""Finished arrays that an arena keeps."""
_using = threading.local()
_open_lock = new_lock()
_open = 0


class ArenaPiece(Piece):
    """Memory of an :class:`Arena`, which holds the block.

    Attributes
    ----------
    arena : Arena
    """

    __slots__ = ("_whole", "arena")
    arena: Arena

    def __init__(self, arena: Arena, generation: int, nbytes: int, context: Context, offset: int) -> None:
        # Allocation.__init__ spelled out: this is made for each value of each graph
        self.arena = arena
        self.memory = arena.memory
        self.bump = arena.bump
        self.generation = generation
        self._whole = arena.block
        self.nbytes = nbytes
        self.offset = offset
        self.context = context
        self.owned = False
        self.users = None
        self.sharing = None
        self.version = 0
        self.outside = None
        self.at_end = NOTHING

    @property
    def block(self) -> Block | None:  # type: ignore[override]  # the arena's, until that is reset: nobody is told
        """The arena's block; None once that was reset or closed."""
        return self._whole if self.generation == self.bump.generation else None

    def part(self, at: int, nbytes: int) -> ArenaPiece:
        """A part of it, from a byte on: it is stale when this is."""
        return ArenaPiece(self.arena, self.generation, nbytes, self.context, self.offset + at)

    def kept_array(self, uid: int) -> Any:
        """The finished array that lay here before, or None."""
        return self.arena.arrays.get((self.offset, uid))

    def kept_arrays(self, uid: int) -> tuple[dict[Any, Any], Any, int] | None:
        """Arrays by offset and spec: what comes after a reset often lies as what was before."""
        self.live_block()
        return self.arena.arrays, (self.offset, uid), MAX_ARENA_ARRAYS


class Arena:
    """Preallocated memory of one place, cut off piece by piece.

    A piece costs a pointer increment and starts at a multiple of the device's alignment; a piece that
    fits exactly is given; one that does not leaves the arena as it was. Freeing a piece does nothing;
    :meth:`reset` gives all back, and tensors that outlive it raise when they are used.

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
        Bytes given away, with what alignment put between the pieces, and all.
    payload : int
        Bytes that were asked for.
    generation : int
        How often it was reset.
    """

    def __init__(self, memory: PlaceMemory, nbytes: int, context: Context) -> None:
        self.memory = memory
        self.place = memory.place
        self.context = context
        self.allocation = memory.alloc(nbytes, context)
        self.block = self.allocation.live_block()
        self.arrays: dict[tuple[int, int], Any] = {}
        """Finished arrays of its memory, by offset and spec."""
        self._offset = self.allocation.offset
        self.bump = Bump(nbytes, memory.alignment)
        if isinstance(self.allocation, Piece):  # of a place that is an arena itself
            self.allocation.bump.holders.add(self)

    size: int = forwarded("bump.size", "Its bytes.")
    used: int = forwarded("bump.used", "Bytes given away, with what alignment put between the pieces.")
    payload: int = forwarded("bump.payload", "Bytes that were asked for.")
    generation: int = forwarded("bump.generation", "How often it was reset.")

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes are left, behind what alignment takes."""
        used, alignment = self.bump.used, self.bump.alignment
        return -(-used // alignment) * alignment + nbytes <= self.bump.size

    def alloc(self, nbytes: int, context: Context | None = None, payload: int | None = None) -> ArenaPiece:
        """Cut off ``nbytes`` for the work of a context; default: the arena's own.

        ``payload`` counts what was asked for of a piece that is cut into parts; default: all of it.

        Raises
        ------
        OutOfMemoryError
            If that is more than is left; the arena is unchanged.
        """
        if type(nbytes) is not int or nbytes < 0:
            raise AllocationError(f"cannot allocate {nbytes!r} bytes of an arena on {self.place}")
        context = context or self.context
        generation = self.bump.generation  # first: what another thread's reset takes back meanwhile is stale
        offset = self.bump.cut(nbytes, context, payload)
        if offset is None:
            raise OutOfMemoryError(
                f"arena on {self.place} is full: asked for {nbytes:,} bytes, used {self.used:,} of {self.size:,}"
                "\n  Do: reset() it between steps, or make it larger"
            )
        return ArenaPiece(self, generation, nbytes, context, self._offset + offset)

    def reset(self) -> None:
        """Give everything back at once. What was allocated before raises when it is used.

        Programs that were bound to it are bound again by their next call.

        Raises
        ------
        AllocationError
            In the middle of a run of this thread.
        """
        self.bump.reset()

    def release(self) -> None:
        """Its own memory is taken back, and with that what was cut off it."""
        self.bump.take_back()
        self.bump.size = 0
        self.arrays.clear()

    def close(self) -> None:
        """Reset, and give the block itself back."""
        self.reset()
        self.bump.size = 0
        self.arrays.clear()
        if self.allocation.block is not None:
            self.memory.free(self.allocation)

    @contextmanager
    def __call__(self) -> Iterator[Arena]:
        """``with arena():`` what this thread allocates on the arena's place comes from it, runs included."""
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
    """Whether any thread is inside ``with arena():`` (cheap, for the hot path)."""
    return _open > 0


def current_arena(memory: PlaceMemory) -> Arena | None:
    """The innermost arena in use by this thread for a place, or None."""
    for arena in reversed(getattr(_using, "stack", ())):
        if arena.memory is memory:
            found: Arena = arena
            return found
    return None


class StrategyPiece(Piece):
    """Memory of a place that is an arena."""

    __slots__ = ()
    recyclable = True  # a reset drops what runs keep

    def __init__(self, memory: PlaceMemory, block: Block, nbytes: int, context: Context, offset: int) -> None:
        super().__init__(memory, block, nbytes, context, offset)
        assert memory.strategy.bump is not None
        memory.strategy.bump.hand_out(self)


class ArenaStrategy(Strategy):
    """All memory of a place is one arena: allocating is a pointer increment, and ``memory.reset`` takes all back.

    Parameters
    ----------
    raw : RawMemory
    nbytes : int
        Its size.
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
        before = self.bump.used
        offset = self.bump.cut(nbytes, context)
        if offset is None:
            raise MemoryError(
                f"the arena is full: used {self.bump.used:,} of {self.bump.size:,}; memory.reset() takes all back"
            )
        whole = self._block
        padded = offset + nbytes - before  # what alignment put before it counts as its padding
        return Block(whole.handle, padded, whole.allocator, context, offset)

    def give(self, block: Block) -> None:
        """Nothing: it comes back with the next reset."""

    def trim(self) -> None:
        """Nothing: the block is the arena."""

    def close(self) -> None:
        self.raw.give(self._block)


strategies.add(NamedStrategy(ArenaStrategy.name, ArenaStrategy, __name__))
