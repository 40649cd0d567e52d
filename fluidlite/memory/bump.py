"""Bump allocation: a pointer into one block that only rises, until a reset moves it back to the beginning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from fluidlite.base.errors import AllocationError
from fluidlite.base.fork import is_held, new_lock
from fluidlite.base.invalidation import cache_version
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.memory.allocation import NO_FINALIZER, Allocation, Block
from fluidlite.platform.context import Context
from fluidlite.platform.device_context import Event


class BumpAllocation(Allocation):
    """Memory of an arena. It is stale after a reset of the arena; using it then raises.

    Attributes
    ----------
    bump : Bump
    generation : int
        The generation of ``bump`` at the allocation.
    """

    __slots__ = ("bump", "generation")
    bump: Bump
    generation: int
    is_permanent = False
    recyclable = False

    @property
    def stale(self) -> bool:
        """Whether the arena was reset or closed since the allocation."""
        return self.generation != self.bump.generation

    def live_block(self) -> Block:
        """The block, or AllocationError if the memory is stale."""
        if self.stale:
            raise AllocationError(
                f"stale arena memory: {self.nbytes} bytes on {self.place} were allocated before the arena's reset"
                "\n  Do: copy what must outlive a reset, or allocate it outside the arena"
            )
        return super().live_block()


class Bump:
    """A bump allocator over one block that records its users.

    ``size``, ``used``: bytes of the block, and allocated bytes with alignment padding.
    ``payload``: requested bytes, without padding.
    ``generation``: the number of resets.
    ``holders``: objects with an ``allocation`` and ``release()``, which is called if a reset makes that stale.
    """

    def __init__(self, size: int, alignment: int) -> None:
        self.size = size
        self.alignment = alignment
        self.used = 0
        self.payload = 0
        self.generation = 0
        self.holders: WeakObjects[Any] = WeakObjects()
        self._pieces: WeakObjects[BumpAllocation] = WeakObjects()
        self._users: WeakObjects[Context] = WeakObjects()
        self._pending_events: list[tuple[Context, Event]] = []
        self._ordered: WeakObjects[Context] = WeakObjects()
        self._last_context: Context | None = None
        """The last context that allocated since the reset; its queue is ordered already."""
        self._lock = new_lock()

    def allocate(self, nbytes: int, context: Context, payload: int | None = None) -> int | None:
        """Allocate ``nbytes`` for the work of a context; return the offset, or None if they do not fit.

        The context's queue waits for the work of other contexts on the memory before the last reset. ``payload``: the
        requested bytes of an allocation that holds several with padding; default: ``nbytes``.
        """
        with self._lock:
            offset = -(-self.used // self.alignment) * self.alignment
            if offset + nbytes > self.size:
                return None
            self.used = offset + nbytes
            self.payload += nbytes if payload is None else payload
            if context is self._last_context:
                return offset
            self._last_context = context
            self._users.add(context)
            waits = [event for owner, event in self._pending_events if owner is not context]
            if waits and context not in self._ordered:
                self._ordered.add(context)
            else:
                waits = []
        for event in waits:
            context.wait_for(event)
        return offset

    def register(self, piece: BumpAllocation) -> None:
        piece.bump, piece.generation = self, self.generation
        self._pieces.add(piece)

    def reset(self, contexts: Iterable[Context] = ()) -> list[tuple[BumpAllocation, Block]]:
        """Invalidate all allocations, and return the live ones with their blocks; later uses of them raise.

        Runs of other threads end first.

        Raises AllocationError if this thread is in the middle of a run, whose memory would become invalid.
        """
        open_contexts = [context for context in contexts if not context.closed]
        while True:
            contexts_by_id = {id(context): context for context in (*open_contexts, *self.users())}
            if any(is_held(context.lock) for context in contexts_by_id.values()):
                raise AllocationError(
                    "an arena cannot be reset in the middle of a run, which uses it\n  Do: reset() between two runs"
                )
            with ExitStack() as stack:
                for key in sorted(contexts_by_id):
                    stack.enter_context(contexts_by_id[key].lock)
                for context in contexts_by_id.values():
                    context.drop_idle()
                invalidated = self.invalidate(contexts_by_id)
            if invalidated is not None:
                cache_version.invalidate()
                return invalidated

    def users(self) -> list[Context]:
        """The open contexts with allocations here, or in arenas whose memory is allocated here."""
        users = [context for context in self._users if not context.closed]
        for holder in self.holders:
            bump = getattr(holder, "bump", None)
            if bump is not None:
                users += bump.users()
        return users

    def invalidate(self, locked: Mapping[int, Context] | None = None) -> list[tuple[BumpAllocation, Block]] | None:
        """Do the work of :meth:`reset`, while the caller holds the locks of ``locked`` contexts, by id.

        Default: of all that have allocations. None, without any change, if another context has allocated meanwhile.
        """
        with self._lock:
            if locked is not None and any(id(context) not in locked for context in self._users if not context.closed):
                return None
            self._pending_events = [(context, context.record()) for context in self._users if not context.closed]
            self._ordered, self._users, self._last_context = WeakObjects(), WeakObjects(), None
            invalidated = [(piece, piece.block) for piece in self._pieces if piece.block is not None]
            for piece, _ in invalidated:
                piece.block = None
                piece.finalizer = NO_FINALIZER
            self._pieces = WeakObjects()
            self.used = self.payload = 0
            self.generation += 1
        for holder in self.holders:
            if (
                isinstance(holder.allocation, BumpAllocation) and holder.allocation.stale
            ):  # not allocations after the reset
                holder.release()
        return invalidated
