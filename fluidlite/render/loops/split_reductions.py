"""Split reductions: work-items reduce parts of a long axis, and a second nest reduces the partial results."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fluidlite.expr.number import lowest
from fluidlite.render.loops.affine import stride_of
from fluidlite.render.loops.elements import Axis, Element
from fluidlite.render.loops.indices import linear
from fluidlite.render.loops.merging import elements_of, rewritten
from fluidlite.render.loops.nest import TILE, Nest, Store
from fluidlite.render.loops.sizes import size_of

PART_ELEMENTS = 8192
"""Elements of a part, about."""
MIN_UNSPLIT_ITEMS, MAX_UNSPLIT_ELEMENTS = 32, 1 << 18
"""A reduction of more elements is split if it has fewer work-items than MIN_UNSPLIT_ITEMS."""


def split_reductions(nest: Nest, first: int) -> tuple[Nest, ...]:
    """The nest unchanged, or two nests that replace it.

    ``first``: the first free workspace number.
    """
    values, all_elements = nest.elements.values, elements_of(nest)
    reduces = [x for x in all_elements if x.op in ("reduce", "arg")]
    cut = _axis_to_split(nest, reduces)
    if cut is None:
        return (nest,)
    axes = reduces[0].params[1]
    items = [size_of(axis.size, values) for axis in nest.items]
    elements = prod(size_of(axis.size, values) for axis in axes) * prod(items)
    threads = prod(items) // (max(min(TILE, items[-1]), 1) if items and _has_coalesced_loads(nest, reduces) else 1)
    size = size_of(cut.size, values)
    max_parts, parts = min(size, -(-elements // PART_ELEMENTS), max(1, 4 * MIN_UNSPLIT_ITEMS // max(threads, 1))), 1
    while parts * 2 <= max_parts:  # powers of two, so that other sizes share the text
        parts *= 2
    if threads >= MIN_UNSPLIT_ITEMS or elements <= MAX_UNSPLIT_ELEMENTS or parts < 2:
        return (nest,)
    e = nest.elements
    step = e.canonical((cut.size + (parts - 1)) // parts)
    part = Axis("p", e.canonical((cut.size + (step - 1)) // step))
    begin = part.leaf * step
    mine = replace(cut, begin=begin, end=lowest(begin + step, cut.size))
    dims = (part.size, *(axis.size for axis in nest.items))
    stores = [
        replace(store, loops=tuple(mine if axis == cut else axis for axis in axes))
        for store in nest.stores
        if store.loops
    ]
    replacements = dict[Element, Element]()
    among = Axis("q", part.size)
    for k, x in enumerate(reduces):
        source = ("made", first + k)
        kind, _ = x.params
        partial = e.intern("reduce", x.args, (kind, tuple(mine if axis == cut else axis for axis in axes)), x.dtype)
        offset = linear((part.leaf, *(axis.leaf for axis in nest.items)), dims)
        stores.append(Store(source, dims, partial, offset, (), "", x.dtype, ()))
        at = linear((among.leaf, *(axis.leaf for axis in nest.items)), dims)
        replacements[x] = e.intern(
            "reduce", (e.intern("load", (), (source, at, ()), x.dtype),), (kind, (among,)), x.dtype
        )
    before = Nest((part, *nest.items), tuple(stores), e)
    after = replace(nest, stores=tuple(store for store in nest.stores if not store.loops))
    return before, rewritten(after, replacements)


def _axis_to_split(nest: Nest, reduces: list[Element]) -> Axis | None:
    """The axis to split, the longest of the reduced axes, if all reductions share them in one pass; else None."""
    if not reduces or any(x.op != "reduce" for x in reduces):
        return None
    axes, items = reduces[0].params[1], {axis.name for axis in nest.items}
    if any(store.loops and (store.loops != axes or nest.elements.has_reduction(store.value)) for store in nest.stores):
        return None
    if any(x.params[1] != axes or not nest.elements.free_axes(x) <= items for x in reduces):
        return None
    if any(axis.begin is not None or axis.end is not None for axis in axes):
        return None
    operands = {id(y) for x in reduces for y in _operands_of(x.args[0])}
    if any(id(x) in operands for x in reduces):
        return None
    longest: Axis = max(axes, key=lambda axis: size_of(axis.size, nest.elements.values))
    return longest


def _operands_of(x: Element) -> list[Element]:
    visited: dict[Element, None] = {}
    pending = [x]
    while pending:
        current = pending.pop()
        if current not in visited:
            visited[current] = None
            pending.extend(current.args)
    return list(visited)


def _has_coalesced_loads(nest: Nest, reduces: list[Element]) -> bool:
    """Whether neighbouring work-items load contiguous elements."""
    last = nest.items[-1].name
    return any(
        step is not None and step.key == "1"
        for x in reduces
        for y in _operands_of(x)
        if y.op == "load"
        for step in [stride_of(y.params[1], last)]
    )
