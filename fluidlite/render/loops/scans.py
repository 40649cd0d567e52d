"""Scans in the nests that read them: what was reduced so far is read where it is computed, and a row that another scan
left is read while it is near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fluidlite.base.dtypes import HALVES
from fluidlite.expr.number import Number, number
from fluidlite.render.loops.affine import same, step_of, with_axes
from fluidlite.render.loops.elements import Axis, Element, Elements, elements_behind, numbers_in
from fluidlite.render.loops.functions import costs_functions
from fluidlite.render.loops.indices import leaves_of
from fluidlite.render.loops.merging import elements_of, rewritten
from fluidlite.render.loops.nest import Nest, Store
from fluidlite.render.loops.sizes import size_of


def with_scans(nests: Sequence[Nest]) -> list[Nest]:
    """The nests; a scan that one other reads, element by element, is in that.

    Going through elements in order, nothing is computed side by side along a row: what costs functions stays apart.
    """
    found = list(nests)
    for join in (_read_at_once, _read_behind):
        for scan in [nest for nest in found if _is_scan(nest)]:
            readers = [nest for nest in found if nest is not scan and _loads(nest, scan.stores[0])]
            joined = join(scan, readers[0]) if len(readers) == 1 else None
            if joined is not None:
                found = [joined if nest is readers[0] else nest for nest in found if nest is not scan]
    return found


def _is_scan(nest: Nest) -> bool:
    (store, *others) = nest.stores
    if others or store.value.op != "running" or store.target[0] != "made" or store.dtype in HALVES:
        return False
    every = elements_of(nest)
    if any(leaf.op == "element" for x in every for n in numbers_in(x) for leaf in leaves_of(n)):
        return False
    return not any(x is not store.value and x.op in ("running", "reduce", "arg") for x in every)


def _loads(nest: Nest, store: Store) -> list[Element]:
    return [x for x in elements_of(nest) if x.op == "load" and x.params[0] == store.target]


def _read_at_once(scan: Nest, reader: Nest) -> Nest | None:
    """The reader, which computes element by element, in the scan's order; None if it reads other elements."""
    (mine,), (theirs, *others) = scan.stores, reader.stores
    if others or theirs.combine or theirs.there or (theirs.ordered and theirs.loops != mine.loops):
        return None
    axes, values = (*scan.items, *mine.loops), reader.elements.values
    if not _are_alike(axes, (*reader.items, *theirs.loops), reader) or costs_functions(theirs.value, reader.elements):
        return None
    if any(x.op in ("reduce", "arg", "checked") for x in elements_of(reader)):
        return None
    loads = _loads(reader, mine)
    if any(x.params[2] or not same(x.params[1], mine.place, values) for x in loads):
        return None
    value = _moved(mine.value, scan.elements, reader.elements)
    stores = (replace(theirs, loops=mine.loops, ordered=True),)
    return _rewritten(Nest(scan.items, stores, reader.elements), {x: value for x in loads})


def _read_behind(scan: Nest, reader: Nest) -> Nest | None:
    """A nest whose items scan their elements first, and then compute what reads them in an order."""
    (mine,), last = scan.stores, reader.stores[-1]
    if not last.ordered or last.combine or len(mine.loops) != len(last.loops) or last.value.op == "running":
        return None
    if not _are_alike(scan.items, reader.items, reader) or not _are_alike(mine.loops, last.loops, reader):
        return None
    if any(x.params[2] or not _is_of_item(x.params[1], mine, scan.items, reader) for x in _loads(reader, mine)):
        return None
    value = _moved(mine.value, scan.elements, reader.elements)
    return _rewritten(replace(reader, stores=(replace(mine, value=value), *reader.stores)), {})


def _are_alike(axes: Sequence[Axis], others: Sequence[Axis], nest: Nest) -> bool:
    """Whether axes have the same names and lengths, in any order."""
    values = nest.elements.values
    if any(axis.begin is not None or axis.end is not None for axis in (*axes, *others)):
        return False
    mine, theirs = ({axis.name: size_of(axis.size, values) for axis in each} for each in (axes, others))
    return mine.keys() == theirs.keys() and all(mine[name] == theirs[name] for name in mine)


def _is_of_item(place: Number, store: Store, items: Sequence[Axis], nest: Nest) -> bool:
    """Whether what lies at a place was stored by the item itself: along its loop, in one direction or the other."""
    (loop,), values = store.loops, nest.elements.values
    ends = (loop.leaf, loop.size - 1 - loop.leaf)
    known = frozenset(axis.name for axis in items) | {loop.name}
    if not nest.elements.needs_of([place]) <= known or step_of(place, loop.name) is None:
        return False
    steps = {axis.name: number(0) for axis in (*items, loop)}
    for end in ends:
        other = with_axes(store.place, {loop.name: end})
        pairs = [(step_of(place, axis.name), step_of(other, axis.name)) for axis in (*items, loop)]
        if any(a is None or b is None or not same(a, b, values) for a, b in pairs):
            continue
        if same(with_axes(place, steps), with_axes(other, steps), values):
            return True
    return False


def _moved(x: Element, source: Elements, target: Elements) -> Element:
    """An element among others."""
    known: dict[Element, Element] = {}
    for y in elements_behind(x, source):
        known[y] = target.made(y.op, [known[arg] for arg in y.args], y.params, y.dtype)
    return known[x]


def _rewritten(nest: Nest, joined: dict[Element, Element]) -> Nest:
    return rewritten(nest, lambda n: n, lambda axes: axes, joined)
