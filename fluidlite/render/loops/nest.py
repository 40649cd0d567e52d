"""Loop nests: a grid of work-items, each of which computes elements and stores them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fluidlite.expr.number import Number
from fluidlite.render.loops.elements import Axis, BufferKey, Element, Elements
from fluidlite.render.loops.functions import expensive_dependencies
from fluidlite.render.loops.indices import Conditions

MIN_ITEMS = 8
"""Work-items of a nest: fewer do not keep all threads busy."""
MAX_UNROLLED = 8
"""Iterations: a loop of no more is unrolled."""
TILE = 16
"""Elements along one axis that a work-item computes together, as vectors."""


@dataclass(frozen=True, eq=False)
class Store:
    """A store of a work-item: one value for each iteration of its loops.

    ``target``: an output ``("out", slot, number)`` or a workspace ``("made", number)``.
    ``dims``: the dims of the target.
    ``offset``: the linear index in the target.
    ``conditions``: nothing is stored unless all of them hold.
    ``combine``: ``""``: each element is written once. ``"add"``: the value is added to the element. ``"set"``: the last
    write in order stays.
    ``loops``: the loops of the work-item.
    ``ordered``: whether the loops run sequentially, in order.
    """

    target: BufferKey
    dims: tuple[Number, ...]
    value: Element
    offset: Number
    conditions: Conditions
    combine: str
    dtype: str
    loops: tuple[Axis, ...]
    ordered: bool = False


@dataclass(frozen=True)
class Nest:
    """A loop nest.

    ``items``: the axes of the work-items, which run in any order and in parallel.
    ``stores``: the stores of each work-item.
    ``elements``: the elements that the stores are computed of.
    ``square``: whether a work-item computes a square tile, since loads are contiguous along another axis than stores.
    """

    items: tuple[Axis, ...]
    stores: tuple[Store, ...]
    elements: Elements
    square: bool = False


def is_cheaper_later(store: Store, pending: Iterable[Store], current: Iterable[Element], e: Elements) -> bool:
    """Whether a store had better wait: a later store of the same loops computes its functions, ``current`` does not."""
    own = expensive_dependencies([store.value], e)
    if not own or own <= expensive_dependencies(current, e):
        return False
    later = [each.value for each in pending if each is not store and each.loops == store.loops]
    return any(own & expensive_dependencies([x], e) and x not in current for x in later if e.has_reduction(x))
