"""Nests: loops that compute elements, and store them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fluidlite.expr.number import Number
from fluidlite.render.loops.elements import Axis, Element, Elements, Source
from fluidlite.render.loops.functions import functions_behind
from fluidlite.render.loops.indices import Conditions

FEW = 8
"""So few items do not share much work."""
TILE = 16
"""Neighbours along an axis that one item computes side by side."""


@dataclass(frozen=True, eq=False)
class Store:
    """What is stored of a tensor, for all elements of an item.

    ``target``: in what: ``("out", slot, number)`` or ``("made", number)``.
    ``dims``: those of the target.
    ``place``: where it is stored.
    ``there``: under which conditions it is stored.
    ``combine``: ``""``: every place is written once. ``"add"``: what is there already is added to. ``"set"``: the last
    in order stays.
    ``loops``: those over the elements of an item.
    ``ordered``: whether loops are gone through in order.
    """

    target: Source
    dims: tuple[Number, ...]
    value: Element
    place: Number
    there: Conditions
    combine: str
    dtype: str
    loops: tuple[Axis, ...]
    ordered: bool = False


@dataclass(frozen=True)
class Nest:
    """Loops that compute elements, and store them.

    ``items``: may be gone through in any order, and at once.
    ``stores``: each for all items.
    ``elements``: of what they are computed.
    ``square``: whether an item goes through a square, where what is read and what is written lie across.
    """

    items: tuple[Axis, ...]
    stores: tuple[Store, ...]
    elements: Elements
    square: bool = False


def later_at_less(store: Store, waiting: Iterable[Store], now: Iterable[Element], e: Elements) -> bool:
    """Whether a store is to wait: its functions are computed for a later one of the same loops, and not ``now``."""
    mine = functions_behind([store.value], e)
    if not mine or mine <= functions_behind(now, e):
        return False
    others = [each.value for each in waiting if each is not store and each.loops == store.loops]
    return any(mine & functions_behind([x], e) and x not in now for x in others if e.reduced(x))
