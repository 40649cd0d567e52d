"""Block and Allocation: a range of raw device memory, and its owner."""

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
"""Array objects that a block caches, one per spec."""


class Block:
    """One raw handle of a device, reused by one allocation after another.

    ``views`` caches array objects of it by ``Spec.uid``: creating one costs more than a small operator.
    ``offset`` is its first byte in the handle. ``free_list`` is the pool's list that it returns to; None if it is not
    pooled.
    """

    __slots__ = ("address", "allocator", "context", "free_list", "handle", "offset", "size", "views")

    def __init__(self, handle: Any, size: int, allocator: Any, context: Context | None, offset: int = 0) -> None:
        self.handle = handle
        self.size = size
        self.offset = offset
        self.allocator = allocator
        self.context = context
        self.views: dict[int, Any] = {}
        self.free_list: list[Block] | None = None
        find = getattr(allocator, "address", None)
        self.address: int | None = find(handle) if find is not None else None


class Sharing(NamedTuple):
    """The context that wrote memory last, and the other contexts that have read it since."""

    writer: Context
    readers: frozenset[Context]


NO_FINALIZER: Callable[[], object] = int
"""The finalizer of an allocation that is not owned: it does nothing."""
NO_CONTEXTS: frozenset[Context] = frozenset()
_outside_lock = new_lock()


class Exports:
    """Exported arrays, which may write memory without raising its version.

    ``live``: one entry for each live array; an export without an end has one forever.
    ``ended``: a new object after the end of each array.
    """

    __slots__ = ("ended", "live")

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.ended: object = None

    def end(self, array_id: int) -> None:
        """Record the end of an array, which may have written. Finalizers call it, so it takes no lock."""
        self.ended = object()  # before the array is removed from live
        self.live.discard(array_id)


class Allocation:
    """Owned memory of a place: opaque (a handle need not be an address), freed once.

    Attributes
    ----------
    place : Place
    nbytes : int
        The requested bytes.
    offset : int
        Byte offset inside the block.
    context : Context
        The owning context; the work of another one is recorded by :meth:`used_by`.
    sharing : Sharing or None
        The contexts that used it. None: only the owning one did, and no cache depends on that.
    version : int
        Rises at each write through any tensor.
    outside : Outside or None
        Exported arrays, which may write it without raising the version; None: there never were any.
    at_end : callable
        The finalizer, implemented in C: Python drops an interrupt that arrives in a finalizer's Python code, and skips
        the rest of that code. It is called anywhere, with or without locks, so it only queues an entry, which the next
        alloc, free or used processes.
    """

    __slots__ = (
        "__weakref__",
        "block",
        "context",
        "exports",
        "finalizer",
        "memory",
        "nbytes",
        "offset",
        "owned",
        "sharing",
        "users",
        "version",
    )
    is_permanent = True
    """Whether it stays valid until it is freed; an arena's does not, so NumPy gets copies of it."""
    recyclable = True
    """Whether runs may reuse a tensor of it for later operators."""

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
        self.exports: Exports | None = None
        self.finalizer: Callable[[], object]
        self.finalizer = partial(memory.freed_entries.append, (block, nbytes, None, context)) if owned else NO_FINALIZER

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

    def array_cache(self, uid: int) -> tuple[dict[Any, Any], Any, int] | None:
        """The cache of array objects of the whole allocation: a dict, the key in it, and its maximum length.

        Parameters
        ----------
        uid : int
            Of the array's ``Spec``.
        """
        return (self.live_block().views, uid, MAX_BLOCK_ARRAYS) if not self.offset else None

    def cached_array(self, uid: int) -> Any:
        """The cached array object of the whole allocation, or None."""
        cached = self.array_cache(uid)
        return cached[0].get(cached[1]) if cached is not None else None

    def address(self) -> int:
        """The address, if the allocator of the place has addresses."""
        address = self.live_block().address
        if address is None:
            raise AllocationError(f"memory of {self.place} has no address; use span()")
        return address + self.offset

    place: Place = forwarded("memory.place", "")

    def export(self) -> Exports:
        """The record of exported arrays, created at its first use."""
        with _outside_lock:
            if self.exports is None:
                self.exports = Exports()
            return self.exports

    def export_forever(self) -> None:
        """Record an export that may write it at any time from now on, without an end."""
        self.export().live.add(-1)

    @property
    def contents(self) -> object:
        """A key for the bytes: equal keys mean equal contents; None if exported arrays may write at any time."""
        outside = self.exports
        if outside is None:
            return (self.version, None) if self.owned else None
        ended = outside.ended  # read it before live
        return (self.version, ended) if self.owned and not outside.live else None

    @property
    def is_private(self) -> bool:
        """Whether only tensors of its own context can see it: no live array, no other context."""
        return self.recyclable and self.users is None and (self.exports is None or not self.exports.live)

    def used_by(self, context: Context) -> None:
        """Record that another context has work in flight on it; its block is reused only after that work."""
        if context is not self.context:
            if self.users is None:
                self.users = set()
                block = self.block
                if self.owned and block is not None:
                    self.finalizer = partial(
                        self.memory.freed_entries.append, (block, self.nbytes, self.users, self.context)
                    )
            elif context not in self.users:
                self.users.difference_update([user for user in self.users if user.closed])
            self.users.add(context)

    __del__ = property(attrgetter("finalizer"))

    def __repr__(self) -> str:
        state = "freed" if self.block is None else "live"
        return f"Allocation({self.nbytes} bytes on {self.place}, {state})"


DeadEntry = tuple[Block, int, "set[Context] | None", Context]
"""A freed block that is not yet counted: block, bytes, other contexts that used it, owning context."""
