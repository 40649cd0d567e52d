"""Long reductions of few items: parts of each are reduced at once, and a second nest reduces what they gave."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fluidlite.expr.number import lowest
from fluidlite.render.loops.affine import step_of
from fluidlite.render.loops.elements import Axis, Element
from fluidlite.render.loops.indices import linear
from fluidlite.render.loops.merging import elements_of, rewritten
from fluidlite.render.loops.nest import TILE, Nest, Store
from fluidlite.render.loops.sizes import size_of

PART = 8192
"""About so many elements are worth a part."""
FEW, MUCH = 32, 1 << 18
"""Of so few items, so much work is done in parts."""


def in_parts(nest: Nest, first: int) -> tuple[Nest, ...]:
    """The nest, or two in its place.

    ``first``: the number of the first workspace that is free.
    """
    values, every = nest.elements.values, elements_of(nest)
    reduces = [x for x in every if x.op in ("reduce", "arg")]
    cut = _cut(nest, reduces)
    if cut is None:
        return (nest,)
    axes = reduces[0].params[1]
    items = [size_of(axis.size, values) for axis in nest.items]
    work = prod(size_of(axis.size, values) for axis in axes) * prod(items)
    count = prod(items) // (max(min(TILE, items[-1]), 1) if items and _along(nest, reduces) else 1)
    size = size_of(cut.size, values)
    wanted, parts = min(size, -(-work // PART), max(1, 4 * FEW // max(count, 1))), 1
    while parts * 2 <= wanted:  # few numbers of parts, so that other sizes have the same text
        parts *= 2
    if count >= FEW or work <= MUCH or parts < 2:
        return (nest,)
    e = nest.elements
    step = e.sized((cut.size + (parts - 1)) // parts)
    part = Axis("p", e.sized((cut.size + (step - 1)) // step))
    begin = part.leaf * step
    mine = replace(cut, begin=begin, end=lowest(begin + step, cut.size))
    dims = (part.size, *(axis.size for axis in nest.items))
    stores = [
        replace(store, loops=tuple(mine if axis == cut else axis for axis in axes))
        for store in nest.stores
        if store.loops
    ]
    joined = dict[Element, Element]()
    among = Axis("q", part.size)
    for k, x in enumerate(reduces):
        source = ("made", first + k)
        kind, _ = x.params
        partial = e.made("reduce", x.args, (kind, tuple(mine if axis == cut else axis for axis in axes)), x.dtype)
        place = linear((part.leaf, *(axis.leaf for axis in nest.items)), dims)
        stores.append(Store(source, dims, partial, place, (), "", x.dtype, ()))
        again = linear((among.leaf, *(axis.leaf for axis in nest.items)), dims)
        joined[x] = e.made("reduce", (e.made("load", (), (source, again, ()), x.dtype),), (kind, (among,)), x.dtype)
    before = Nest((part, *nest.items), tuple(stores), e)
    after = replace(nest, stores=tuple(store for store in nest.stores if not store.loops))
    return before, rewritten(after, lambda n: n, lambda given: given, joined)


def _cut(nest: Nest, reduces: list[Element]) -> Axis | None:
    """The axis that is cut: the longest of those that all reductions go through, if they are one pass."""
    if not reduces or any(x.op != "reduce" for x in reduces):
        return None
    axes, items = reduces[0].params[1], {axis.name for axis in nest.items}
    if any(store.loops and (store.loops != axes or nest.elements.reduced(store.value)) for store in nest.stores):
        return None
    if any(x.params[1] != axes or not nest.elements.needs(x) <= items for x in reduces):
        return None
    if any(axis.begin is not None or axis.end is not None for axis in axes):
        return None
    behind = {id(y) for x in reduces for y in _within(x.args[0])}
    if any(id(x) in behind for x in reduces):
        return None
    longest: Axis = max(axes, key=lambda axis: size_of(axis.size, nest.elements.values))
    return longest


def _within(x: Element) -> list[Element]:
    found: dict[Element, None] = {}
    pending = [x]
    while pending:
        one = pending.pop()
        if one not in found:
            found[one] = None
            pending.extend(one.args)
    return list(found)


def _along(nest: Nest, reduces: list[Element]) -> bool:
    """Whether the elements of an item lie side by side with those of others."""
    last = nest.items[-1].name
    return any(
        step is not None and step.key == "1"
        for x in reduces
        for y in _within(x)
        if y.op == "load"
        for step in [step_of(y.params[1], last)]
    )
