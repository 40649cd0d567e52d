"""Sequential loops: scatters, in which each row of the target has one owning work-item, and scans."""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import prod

from fluidlite.expr.number import Number, lowest, number
from fluidlite.expr.tensor import Tensor
from fluidlite.render.loops.elements import Axis, BufferKey, Elements
from fluidlite.render.loops.indices import Index
from fluidlite.render.loops.nest import Nest, Store
from fluidlite.render.loops.rules import elements
from fluidlite.render.loops.sizes import Sizes, size_of
from fluidlite.render.loops.sorted_scatter import SortedScatter, Updates, is_worth_sorting

SCATTERING = frozenset({"add_at", "add_rows", "put", "set_at"})
"""Scatter primitives."""
MIN_SPLIT_UPDATES = 16384
"""Updates: with more, the rows of the target are split into parts."""
OWNER_COLUMNS, MIN_OWNERS = 512, 32
"""Columns of a work-item, and the work-items from which the rows need not be split."""
ROW_PARTS = 4
"""Parts that the rows of a target are split into; each owning work-item reads all indices."""
LOCKSTEP_OWNERS, MIN_LOCKSTEP_UPDATES = 8192, 256
"""Work-items wanted on devices that run them in lockstep, and the updates from which rows are split for that."""


def is_sequential(x: Tensor, values: Sizes) -> bool:
    """Whether a tensor needs a nest of its own with sequential loops."""
    if x.op == "put":
        return size_of(x.args[1].dims[x.params[0]], values) != 1
    return x.op in SCATTERING or x.op == "scan"


def scatter_base(x: Tensor) -> Tensor | None:
    """The tensor that a scatter updates, or None."""
    return x.args[0] if x.op == "set_at" else x.args[2] if len(x.args) == 3 else None


def scatter_chain(x: Tensor, stored: Container[Tensor], values: Sizes) -> list[Tensor]:
    """The chain of scatters that update each other's results, the first one first."""
    chain, base = [x], scatter_base(x)
    while base is not None and base not in stored and is_sequential(base, values):
        chain.insert(0, base)
        base = scatter_base(base)
    return chain


def scatter_nests(
    x: Tensor, target: BufferKey, stored: Mapping[Tensor, BufferKey], values: Sizes, free: int | None = None
) -> list[Nest]:
    """The nests of a chain of scatters: they store the base, then each update at its index.

    The rows of the target are split into parts. Each part has one owning work-item, which reads all indices in order,
    so that the result is deterministic without atomics. Devices with lockstep work-items get many parts, or sort the
    updates by row first.

    ``free``: the first unused workspace number, for devices that run work-items in lockstep; None for others.
    """
    e = elements(stored, values)
    lockstep = free is not None
    chain, axis = scatter_chain(x, stored, values), x.params[0] if x.params else 0
    if free is not None and len(chain) == 1 and x.op != "put":
        updates_of_x = Updates(x, *_updates(x), axis, _combine(x))
        if is_worth_sorting(updates_of_x, e):
            return SortedScatter(updates_of_x, target, scatter_base(x), e, free).nests()
    size = e.canonical(x.dims[axis])
    inner = [each for each in _axes(x, e)[0] if each.name != f"i{axis}"]
    max_updates = max(prod(size_of(d, values) for d in _updates(scatter)[0].dims) for scatter in chain)
    owners = prod(e.extents[each.name] for each in inner)
    if not lockstep and inner and inner[-1].name == f"i{x.rank - 1}":
        owners = owners // max(1, min(e.extents[inner[-1].name], OWNER_COLUMNS))
    parts = ROW_PARTS if owners < MIN_OWNERS and max_updates > MIN_SPLIT_UPDATES else 1
    if lockstep and max_updates > MIN_LOCKSTEP_UPDATES:
        while parts * owners < LOCKSTEP_OWNERS and parts < size_of(size, values):
            parts *= 2
    step = e.canonical((size + (parts - 1)) // parts) if parts > 1 else size
    part = e.add_axis(Axis("p", number(parts)))
    begin = part.leaf * step if parts > 1 else number(0)
    end = lowest(begin + step, size) if parts > 1 else size
    row = e.add_axis(Axis("row", size, begin, end))

    def outer_index(k: int) -> Number:
        """The index along a dim of the target other than the scattered one."""
        return number(0) if e.is_one(x.dims[k]) else Axis(f"i{k}", x.dims[k]).leaf

    here = tuple(row.leaf if k == axis else outer_index(k) for k in range(x.rank))
    base = scatter_base(chain[0])
    value = e.cast(e.number(0, x.dtype) if base is None else e.at(base, here), x.dtype)
    stores = [Store(target, x.dims, value, e.linear(here, x), (), "", x.dtype, (row,))]
    for turn, scatter in enumerate(chain):
        updates, indices = _updates(scatter)
        count = 1 if scatter.op == "put" else indices.rank
        loops = tuple(
            e.add_axis(Axis(f"s{turn}_{k}", d))
            for k, d in enumerate(updates.dims[axis : axis + count])
            if not e.is_one(d)
        )
        leaves = {each.name: each.leaf for each in loops}
        entry = tuple(leaves.get(f"s{turn}_{k}", number(0)) for k in range(count))
        index = (*here[:axis], *entry, *here[axis + 1 :])
        raw = e.at(indices, index if scatter.op == "put" else entry)
        at = e.index_of(raw)
        is_always_in_range = parts == 1 and size_of(size, values) > 0 and e.is_in_range(raw, size)
        conditions = () if is_always_in_range else (at >= begin, at < end)
        if scatter.op == "set_at":
            at = e.index_of(e.checked_index(raw, x.dims[axis], ()))
        offset = e.linear((*here[:axis], at, *here[axis + 1 :]), x)
        stores.append(
            Store(target, x.dims, e.at(updates, index), offset, conditions, _combine(scatter), x.dtype, loops, True)
        )
    items = [*([part] if parts > 1 else []), *inner]
    return [Nest(tuple(items), tuple(stores), e)]


def _combine(x: Tensor) -> str:
    """The ``combine`` of a scatter's :class:`Store`."""
    return "set" if x.op == "set_at" else "add"


def _updates(x: Tensor) -> tuple[Tensor, Tensor]:
    """The updates and the indices of a scatter."""
    return (x.args[1], x.args[2]) if x.op == "set_at" else (x.args[0], x.args[1])


def scan_nest(x: Tensor, target: BufferKey, stored: Mapping[Tensor, BufferKey], values: Sizes) -> Nest:
    """The nest of a scan: a sequential loop along its axis that stores the running reduction."""
    e = elements(stored, values)
    (source,), (kind, at, reverse, exclusive) = x.args, x.params
    axes, index = _axes(x, e)
    source_index = (*index[:at], x.dims[at] - 1 - index[at], *index[at + 1 :]) if reverse else index
    loops = tuple(axis for axis in axes if axis.name == f"i{at}")
    items = tuple(axis for axis in axes if axis.name != f"i{at}")
    if not loops:
        loops = (Axis(f"i{at}", x.dims[at]),)
    value = e.intern("running", (e.at(source, source_index),), (kind, loops[0], exclusive), x.dtype)
    return Nest(items, (Store(target, x.dims, value, e.linear(source_index, x), (), "", x.dtype, loops, True),), e)


def _axes(x: Tensor, e: Elements) -> tuple[tuple[Axis, ...], Index]:
    """The axes of a loop over all elements of a tensor, and the index of an element."""
    axes = tuple(Axis(f"i{k}", d) for k, d in enumerate(x.dims) if not e.is_one(d))
    for axis in axes:
        e.add_axis(axis)
    leaves = {axis.name: axis.leaf for axis in axes}
    return axes, tuple(leaves.get(f"i{k}", number(0)) for k in range(x.rank))
