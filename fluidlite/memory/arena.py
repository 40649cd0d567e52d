"""Arena: a bump pointer over one block, rewound as a whole (what Ginn calls a preallocated device)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fluidlite.base.errors import AllocationError, OutOfMemoryError
from fluidlite.memory.allocation import Allocation, Block
from fluidlite.memory.place_memory import PlaceMemory
from fluidlite.platform.context import Context

_using = threading.local()
_open_lock = threading.Lock()
_open = 0


class ArenaAllocation(Allocation):
    """Memory of an arena; it is stale once the arena was reset."""

    __slots__ = ("arena", "generation")
    cacheable = False

    def __init__(self, arena: Arena, nbytes: int, offset: int) -> None:
        super().__init__(arena.memory, arena.block, nbytes, arena.context, offset, owned=False)
        self.arena = arena
        self.generation = arena.generation

    def live_block(self) -> Block:
        """The block, or AllocationError if the arena was reset or closed since."""
        if self.generation != self.arena.generation:
            raise AllocationError(
                f"stale arena memory: {self.nbytes} bytes on {self.place} were allocated before the arena's reset"
                "\n  Do: copy what must outlive a reset, or allocate it outside the arena"
            )
        return super().live_block()


class Arena:
    """Preallocated memory of one place, cut off piece by piece.

    Parameters
    ----------
    memory : PlaceMemory
    nbytes : int
        Its size.
    context : Context
        The context whose work uses it.

    A piece costs a pointer increment and starts at a multiple of the device's alignment; a piece that
    fits exactly is given; one that does not leaves the arena as it was. Freeing a piece does nothing;
    :meth:`reset` gives all back, and tensors that outlive it raise when they are used.
    """

    def __init__(self, memory: PlaceMemory, nbytes: int, context: Context) -> None:
        self.memory = memory
        self.place = memory.place
        self.context = context
        self.size = nbytes
        self.used = 0
        self.generation = 0
        self._allocation = memory.alloc(nbytes, context)
        self.block = self._allocation.live_block()
        self._lock = threading.Lock()

    def alloc(self, nbytes: int) -> ArenaAllocation:
        """Cut off ``nbytes``.

        Raises
        ------
        OutOfMemoryError
            If that is more than is left; the arena is unchanged.
        """
        if not isinstance(nbytes, int) or nbytes < 0:
            raise AllocationError(f"cannot allocate {nbytes!r} bytes of an arena on {self.place}")
        with self._lock:
            alignment = self.memory.alignment
            offset = -(-self.used // alignment) * alignment
            if offset + nbytes > self.size:
                raise OutOfMemoryError(
                    f"arena on {self.place} is full: asked for {nbytes:,} bytes, used {self.used:,} of {self.size:,}"
                    "\n  Do: reset() it between steps, or make it larger"
                )
            self.used = offset + nbytes
            return ArenaAllocation(self, nbytes, offset)

    def reset(self) -> None:
        """Give everything back at once. What was allocated before raises when it is used."""
        with self._lock:
            self.used = 0
            self.generation += 1

    def close(self) -> None:
        """Reset, and give the block itself back."""
        self.reset()
        self.size = 0
        self.memory.free(self._allocation)

    @contextmanager
    def __call__(self) -> Iterator[Arena]:
        """``with arena():`` tensors that this thread allocates on the arena's place come from it."""
        global _open
        stack: list[Arena] = _using.__dict__.setdefault("stack", [])
        stack.append(self)
        with _open_lock:
            _open += 1
        try:
            yield self
        finally:
            stack.remove(self)
            with _open_lock:
                _open -= 1


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
