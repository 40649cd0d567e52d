"""Bump: a pointer into one block that only rises, and that a reset takes back to the beginning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from fluidlite.base.errors import AllocationError
from fluidlite.base.fork import holds, new_lock
from fluidlite.base.invalidation import cache_version
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.memory.allocation import NOTHING, Allocation, Block
from fluidlite.platform.context import Context
from fluidlite.platform.device_context import Event


class Piece(Allocation):
    """Memory of an arena; it is stale once that was reset, and says so when it is used.

    Attributes
    ----------
    bump : Bump
    generation : int
        Of that when it was cut off.
    """

    __slots__ = ("bump", "generation")
    bump: Bump
    generation: int
    lasting = False
    recyclable = False

    @property
    def stale(self) -> bool:
        """Whether the arena was reset or closed since."""
        return self.generation != self.bump.generation

    def live_block(self) -> Block:
        """The block, or AllocationError if the arena was reset or closed since."""
        if self.stale:
            raise AllocationError(
                f"stale arena memory: {self.nbytes} bytes on {self.place} were allocated before the arena's reset"
                "\n  Do: copy what must outlive a reset, or allocate it outside the arena"
            )
        return super().live_block()


class Bump:
    """Cuts pieces off one block, and knows who has some.

    ``size``, ``used``: bytes of the block, and up to which it is given away.
    ``payload``: bytes that were asked for: ``used`` without what alignment put between the pieces.
    ``generation``: how often it was reset.
    ``holders``: what lets go of pieces when they are taken back: they have an ``allocation`` and ``release()``.
    """

    def __init__(self, size: int, alignment: int) -> None:
        self.size = size
        self.alignment = alignment
        self.used = 0
        self.payload = 0
        self.generation = 0
        self.holders: WeakObjects[Any] = WeakObjects()
        self._pieces: WeakObjects[Piece] = WeakObjects()
        self._users: WeakObjects[Context] = WeakObjects()
        self._before: list[tuple[Context, Event]] = []
        self._ordered: WeakObjects[Context] = WeakObjects()
        self._last: Context | None = None
        """Who took a piece last since the last reset: nothing is left to do for it."""
        self._lock = new_lock()

    def cut(self, nbytes: int, context: Context, payload: int | None = None) -> int | None:
        """Cut off ``nbytes`` for the work of a context; return the offset, or None if there is less: nothing changes.

        The context's queue waits for what others had to do with the memory before it was taken back. ``payload`` is
        what was asked for of a piece that is several, with what lies between them; default: all of it.
        """
        with self._lock:
            offset = -(-self.used // self.alignment) * self.alignment
            if offset + nbytes > self.size:
                return None
            self.used = offset + nbytes
            self.payload += nbytes if payload is None else payload
            if context is self._last:
                return offset
            self._last = context
            self._users.add(context)
            waits = [event for owner, event in self._before if owner is not context]
            if waits and context not in self._ordered:
                self._ordered.add(context)
            else:
                waits = []
        for event in waits:
            context.wait_for(event)
        return offset

    def hand_out(self, piece: Piece) -> None:
        piece.bump, piece.generation = self, self.generation
        self._pieces.add(piece)

    def reset(self, contexts: Iterable[Context] = ()) -> list[tuple[Piece, Block]]:
        """Take all pieces back, and return those that somebody still had; they raise when they are used.

        Runs of other threads end first.

        Raises AllocationError if this thread is in the middle of a run, as what it computes on would be taken away.
        """
        others = [context for context in contexts if not context.closed]
        while True:
            everyone = {id(context): context for context in (*others, *self.users())}
            if any(holds(context.lock) for context in everyone.values()):
                raise AllocationError(
                    "an arena cannot be reset in the middle of a run, which uses it\n  Do: reset() between two runs"
                )
            with ExitStack() as stack:
                for key in sorted(everyone):
                    stack.enter_context(everyone[key].lock)
                for context in everyone.values():
                    context.drop_idle()
                taken = self.take_back(everyone)
            if taken is not None:
                cache_version.invalidate()
                return taken

    def users(self) -> list[Context]:
        """The open contexts that have pieces, or pieces of these."""
        found = [context for context in self._users if not context.closed]
        for holder in self.holders:
            bump = getattr(holder, "bump", None)
            if bump is not None:
                found += bump.users()
        return found

    def take_back(self, held: Mapping[int, Context] | None = None) -> list[tuple[Piece, Block]] | None:
        """Do what :meth:`reset` does, while some contexts are held, by their ids; default: all that have pieces.

        None, and nothing is done, if another has taken a piece meanwhile.
        """
        with self._lock:
            if held is not None and any(id(context) not in held for context in self._users if not context.closed):
                return None
            self._before = [(context, context.record()) for context in self._users if not context.closed]
            self._ordered, self._users, self._last = WeakObjects(), WeakObjects(), None
            taken = [(piece, piece.block) for piece in self._pieces if piece.block is not None]
            for piece, _ in taken:
                piece.block = None
                piece.at_end = NOTHING
            self._pieces = WeakObjects()
            self.used = self.payload = 0
            self.generation += 1
        for holder in self.holders:
            if isinstance(holder.allocation, Piece) and holder.allocation.stale:  # not what was cut off since
                holder.release()
        return taken
