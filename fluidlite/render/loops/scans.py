"""Fuses scans into the nests that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fluidlite.base.dtypes import HALVES
from fluidlite.expr.number import Number, number
from fluidlite.render.loops.affine import is_equal_number, stride_of, with_axes
from fluidlite.render.loops.elements import Axis, Element, Elements, dependencies
from fluidlite.render.loops.functions import costs_functions
from fluidlite.render.loops.merging import elements_of, rewritten
from fluidlite.render.loops.nest import Nest, Store
from fluidlite.render.loops.sizes import size_of


def with_fused_scans(nests: Sequence[Nest]) -> list[Nest]:
    """Fuse each scan that a single other nest reads into that nest.

    A sequential loop is not vectorized along the row, so readers that compute functions are not fused.
    """
    fused = list(nests)
    for fuse in (_fuse_elementwise, _fuse_sequential):
        for scan in [nest for nest in fused if _is_scan(nest)]:
            readers = [nest for nest in fused if nest is not scan and _loads(nest, scan.stores[0])]
            replacement = fuse(scan, readers[0]) if len(readers) == 1 else None
            if replacement is not None:
                fused = [replacement if nest is readers[0] else nest for nest in fused if nest is not scan]
    return fused


def _is_scan(nest: Nest) -> bool:
    (store, *more_stores) = nest.stores
    if more_stores or store.value.op != "running" or store.target[0] != "made" or store.dtype in HALVES:
        return False
    elements = elements_of(nest)
    if any(x.indices for x in elements):
        return False
    return not any(x is not store.value and x.op in ("running", "reduce", "arg") for x in elements)


def _loads(nest: Nest, store: Store) -> list[Element]:
    return [x for x in elements_of(nest) if x.op == "load" and x.params[0] == store.target]


def _fuse_elementwise(scan: Nest, reader: Nest) -> Nest | None:
    """Fuse an elementwise reader into the loop of the scan; None if it reads other elements."""
    (written,), (store, *rest) = scan.stores, reader.stores
    if rest or store.combine or store.conditions or (store.ordered and store.loops != written.loops):
        return None
    axes, values = (*scan.items, *written.loops), reader.elements.values
    if not _match_by_name(axes, (*reader.items, *store.loops), reader) or costs_functions(store.value, reader.elements):
        return None
    if any(x.op in ("reduce", "arg", "checked") for x in elements_of(reader)):
        return None
    loads = _loads(reader, written)
    if any(x.params[2] or not is_equal_number(x.params[1], written.offset, values) for x in loads):
        return None
    value = _copied(written.value, scan.elements, reader.elements)
    stores = (replace(store, loops=written.loops, ordered=True),)
    return rewritten(Nest(scan.items, stores, reader.elements), {x: value for x in loads})


def _fuse_sequential(scan: Nest, reader: Nest) -> Nest | None:
    """Fuse a scan and a sequential reader: each work-item scans its elements first, while the caches hold them."""
    (written,), last = scan.stores, reader.stores[-1]
    if not last.ordered or last.combine or len(written.loops) != len(last.loops) or last.value.op == "running":
        return None
    if not _match_by_name(scan.items, reader.items, reader) or not _match_by_name(written.loops, last.loops, reader):
        return None
    if any(x.params[2] or not _is_own_item(x.params[1], written, scan.items, reader) for x in _loads(reader, written)):
        return None
    value = _copied(written.value, scan.elements, reader.elements)
    return rewritten(replace(reader, stores=(replace(written, value=value), *reader.stores)), {})


def _match_by_name(axes: Sequence[Axis], other_axes: Sequence[Axis], nest: Nest) -> bool:
    """Whether two lists of axes have the same names and lengths, in any order."""
    values = nest.elements.values
    if any(axis.begin is not None or axis.end is not None for axis in (*axes, *other_axes)):
        return False
    mine, other = ({axis.name: size_of(axis.size, values) for axis in each} for each in (axes, other_axes))
    return mine.keys() == other.keys() and all(mine[name] == other[name] for name in mine)


def _is_own_item(offset: Number, store: Store, items: Sequence[Axis], nest: Nest) -> bool:
    """Whether the work-item itself stored the element at an offset: along its loop, forward or reversed."""
    (loop,), values = store.loops, nest.elements.values
    ends = (loop.leaf, loop.size - 1 - loop.leaf)
    item_axes = frozenset(axis.name for axis in items) | {loop.name}
    if not nest.elements.number_axes([offset]) <= item_axes or stride_of(offset, loop.name) is None:
        return False
    zeros = {axis.name: number(0) for axis in (*items, loop)}
    for end in ends:
        reversed_offset = with_axes(store.offset, {loop.name: end})
        pairs = [(stride_of(offset, axis.name), stride_of(reversed_offset, axis.name)) for axis in (*items, loop)]
        if any(a is None or b is None or not is_equal_number(a, b, values) for a, b in pairs):
            continue
        if is_equal_number(with_axes(offset, zeros), with_axes(reversed_offset, zeros), values):
            return True
    return False


def _copied(x: Element, source: Elements, target: Elements) -> Element:
    """Copy an element and its dependencies to other elements."""
    copies: dict[Element, Element] = {}
    for y in dependencies(x, source):
        copies[y] = target.intern(y.op, [copies[arg] for arg in y.args], y.params, y.dtype)
    return copies[x]
