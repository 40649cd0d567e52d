"""Block and Allocation: a piece of raw memory, and the one who holds it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from fluidlite.base.errors import AllocationError
from fluidlite.base.fork import new_lock
from fluidlite.base.forwarded import forwarded
from fluidlite.platform.context import Context
from fluidlite.platform.device_memory import Span
from fluidlite.platform.place import Place

if TYPE_CHECKING:
    from fluidlite.memory.place_memory import PlaceMemory


MAX_BLOCK_ARRAYS = 8
"""Finished arrays that a block keeps, one a spec."""


class Block:
    """One raw handle of a device, reused by one allocation after another.

    ``views`` keeps finished arrays of it by ``Spec.uid``: making one costs more than a small operator.
    ``offset`` is where it begins in the handle. ``home`` is the pool's list that it goes back to; None if it is not
    pooled.
    """

    __slots__ = ("address", "allocator", "context", "handle", "home", "offset", "size", "views")

    def __init__(self, handle: Any, size: int, allocator: Any, context: Context | None, offset: int = 0) -> None:
        self.handle = handle
        self.size = size
        self.offset = offset
        self.allocator = allocator
        self.context = context
        self.views: dict[int, Any] = {}
        self.home: list[Block] | None = None
        find = getattr(allocator, "address", None)
        self.address: int | None = find(handle) if find is not None else None


class Sharing(NamedTuple):
    """Which context wrote memory last, and which others have read it since."""

    writer: Context
    readers: frozenset[Context]


NOTHING: Callable[[], object] = int
"""What is called at the end of an allocation that is not owned."""
NOBODY: frozenset[Context] = frozenset()
_first = new_lock()


class Outside:
    """Who may write memory without saying so: arrays that were handed out.

    ``live``: one entry for each array that still lives; what is never taken back has one for good.
    ``ended``: another one after each that ended.
    """

    __slots__ = ("ended", "live")

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.ended: object = None

    def end(self, one: int) -> None:
        """Note that an array is gone; it may have been written. Called by finalisers: it takes no lock."""
        self.ended = object()  # before it counts as gone
        self.live.discard(one)


class Allocation:
    """Memory that somebody holds: opaque (a handle need not be an address), freed once.

    Attributes
    ----------
    place : Place
    nbytes : int
        What was asked for.
    offset : int
        Byte offset inside the block.
    context : Context
        The context it belongs to; another one that uses it says so with :meth:`used_by`.
    sharing : Sharing or None
        Who has used it. None: nobody but the context it belongs to, and nobody counts on being told of others.
    version : int
        Rises at each write, through whichever tensor.
    outside : Outside or None
        Who may write it without raising the version; None: nobody ever could.
    at_end : callable
        Called with its end. Only what is written in C: Python swallows an interrupt that arrives in a finaliser's own
        code, and leaves out the rest of that. It is called anywhere, locks held or not, so that it only queues; the
        next alloc, free or used takes it from there.
    """

    __slots__ = (
        "__weakref__",
        "at_end",
        "block",
        "context",
        "memory",
        "nbytes",
        "offset",
        "outside",
        "owned",
        "sharing",
        "users",
        "version",
    )
    lasting = True
    """Whether it stays until it is freed: an arena's does not, so that NumPy gets copies of it."""
    recyclable = True
    """Whether runs may keep a tensor of it for their next operators."""

    def __init__(
        self, memory: PlaceMemory, block: Block, nbytes: int, context: Context, offset: int = 0, owned: bool = True
    ) -> None:
        self.memory = memory
        self.block: Block | None = block
        self.nbytes = nbytes
        self.offset = offset
        self.context = context
        self.owned = owned
        self.users: set[Context] | None = None
        self.sharing: Sharing | None = None
        self.version = 0
        self.outside: Outside | None = None
        self.at_end: Callable[[], object]
        self.at_end = partial(memory.dead.append, (block, nbytes, None, context)) if owned else NOTHING

    def live_block(self) -> Block:
        """The block, or AllocationError if the allocation was freed."""
        block = self.block
        if block is None:
            raise AllocationError(
                f"use after free: {self.nbytes} bytes on {self.place} were given back by memory.free"
                "\n  Do: keep the allocation until its last use, or let its tensor free it"
            )
        return block

    def span(self) -> Span:
        return Span(self.live_block().handle, self.offset, self.nbytes)

    def kept_arrays(self, uid: int) -> tuple[dict[Any, Any], Any, int] | None:
        """Where a finished array of the whole allocation is kept: a dict, the key there, how many it keeps at most.

        Parameters
        ----------
        uid : int
            Of the array's ``Spec``.
        """
        return (self.live_block().views, uid, MAX_BLOCK_ARRAYS) if not self.offset else None

    def kept_array(self, uid: int) -> Any:
        """The finished array of the whole allocation that an earlier use has left, or None."""
        kept = self.kept_arrays(uid)
        return kept[0].get(kept[1]) if kept is not None else None

    def address(self) -> int:
        """Its address, where the place's allocator gives addresses."""
        address = self.live_block().address
        if address is None:
            raise AllocationError(f"memory of {self.place} has no address; use span()")
        return address + self.offset

    place: Place = forwarded("memory.place", "")

    def hand_out(self) -> Outside:
        """Begin to count who may write it without saying so."""
        with _first:
            if self.outside is None:
                self.outside = Outside()
            return self.outside

    def open_for_good(self) -> None:
        """Note that somebody has what can write it at any time, and that nobody will hear of the end of that."""
        self.hand_out().live.add(-1)

    @property
    def contents(self) -> object:
        """What stands for the bytes: equal as long as nobody wrote; None where somebody may at any time, unheard."""
        outside = self.outside
        if outside is None:
            return (self.version, None) if self.owned else None
        ended = outside.ended  # before the look
        return (self.version, ended) if self.owned and not outside.live else None

    @property
    def is_private(self) -> bool:
        """Whether only tensors of its own context can see it: no live array, no other context."""
        return self.recyclable and self.users is None and (self.outside is None or not self.outside.live)

    def used_by(self, context: Context) -> None:
        """Say that another context has work in flight on it, so that its block waits for that before reuse."""
        if context is not self.context:
            if self.users is None:
                self.users = set()
                block = self.block
                if self.owned and block is not None:
                    self.at_end = partial(self.memory.dead.append, (block, self.nbytes, self.users, self.context))
            elif context not in self.users:
                self.users.difference_update([user for user in self.users if user.closed])
            self.users.add(context)

    __del__ = property(attrgetter("at_end"))

    def __repr__(self) -> str:
        state = "freed" if self.block is None else "live"
        return f"Allocation({self.nbytes} bytes on {self.place}, {state})"


DeadEntry = tuple[Block, int, "set[Context] | None", Context]
"""What was freed and is not yet counted."""
