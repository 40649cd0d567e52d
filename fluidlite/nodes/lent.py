"""LentAllocation: a part of an allocation, which stays alive while one of its parts is referenced."""

from __future__ import annotations

from fluidlite.memory.allocation import NO_FINALIZER, Allocation, Block
from fluidlite.memory.arena import ArenaAllocation


class LentAllocation(Allocation):
    """A part of a run's memory, for nodes and their users; the run checks its reference count before reuse.

    ``at``: its offset in ``parent``, in bytes.
    ``nbytes``: its size; default: that of ``parent``.
    """

    __slots__ = ("parent",)
    recyclable = False

    def __init__(self, parent: Allocation, at: int = 0, nbytes: int | None = None) -> None:
        self.parent = parent  # owns the memory
        self.memory = parent.memory
        self.nbytes = parent.nbytes if nbytes is None else nbytes
        self.context = parent.context
        self.offset = parent.offset + at
        self.owned = False
        self.users = None
        self.sharing = None
        self.version = 0
        self.exports = None
        self.finalizer = NO_FINALIZER

    @property
    def block(self) -> Block | None:  # type: ignore[override]  # an arena may reclaim it
        return self.parent.block

    @property
    def is_permanent(self) -> bool:  # type: ignore[override]
        return self.parent.is_permanent

    def live_block(self) -> Block:
        return self.parent.live_block()


def part_of(parent: Allocation, at: int, nbytes: int) -> Allocation:
    """A part of an allocation, valid as long as that is; on a preallocated device, an ordinary arena piece."""
    return parent.part(at, nbytes) if isinstance(parent, ArenaAllocation) else LentAllocation(parent, at, nbytes)
