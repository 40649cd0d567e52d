"""Lent memory: a part of an allocation, which lives as long as somebody has one of its parts."""

from __future__ import annotations

from fluidlite.memory.allocation import NOTHING, Allocation, Block
from fluidlite.memory.arena import ArenaPiece


class Lent(Allocation):
    """Memory of a run that nodes and their users hold: the run sees by its references whether anybody does.

    ``at``: where it begins there.
    ``nbytes``: default: all of it.
    """

    __slots__ = ("whole",)
    recyclable = False

    def __init__(self, whole: Allocation, at: int = 0, nbytes: int | None = None) -> None:
        self.whole = whole  # which frees the memory
        self.memory = whole.memory
        self.nbytes = whole.nbytes if nbytes is None else nbytes
        self.context = whole.context
        self.offset = whole.offset + at
        self.owned = False
        self.users = None
        self.sharing = None
        self.version = 0
        self.outside = None
        self.at_end = NOTHING

    @property
    def block(self) -> Block | None:  # type: ignore[override]  # a place that is an arena takes back what all have
        return self.whole.block

    @property
    def lasting(self) -> bool:  # type: ignore[override]
        return self.whole.lasting

    def live_block(self) -> Block:
        return self.whole.live_block()


def part_of(whole: Allocation, at: int, nbytes: int) -> Allocation:
    """A part of an allocation, as stale as that; of a preallocated device, a piece like others."""
    return whole.part(at, nbytes) if isinstance(whole, ArenaPiece) else Lent(whole, at, nbytes)
