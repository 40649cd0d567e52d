"""Loops that are gone through in an order: scatters, of which each row has one owner, and scans."""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import prod

from fluidlite.expr.number import Number, lowest, number
from fluidlite.expr.tensor import Tensor
from fluidlite.render.loops.elements import Axis, Elements, Source
from fluidlite.render.loops.indices import Index
from fluidlite.render.loops.nest import Nest, Store
from fluidlite.render.loops.rules import elements
from fluidlite.render.loops.sizes import Sizes, size_of
from fluidlite.render.loops.sorted_scatter import Updates, pays, scattered_side_by_side

SCATTERING = frozenset({"add_at", "add_rows", "put", "set_at"})
"""Primitives that say of each of their operands' elements where it goes."""
SCATTERED = 16384
"""Of so many updates, at least, the target is split in parts."""
COLUMNS, ENOUGH = 512, 32
"""Where there are so many owners of so many columns, rows are not split."""
PARTS = 4
"""Into so many parts the rows of a target are split among items that each read all indices."""
OWNERS, MANY = 8192, 256
"""So many owners a device has that runs items side by side, where there are so many updates."""


def in_order(x: Tensor, values: Sizes) -> bool:
    """Whether a tensor is computed by loops of its own, in an order."""
    if x.op == "put":
        return size_of(x.args[1].dims[x.params[0]], values) != 1
    return x.op in SCATTERING or x.op == "scan"


def base_of(x: Tensor) -> Tensor | None:
    """What a scatter writes over."""
    return x.args[0] if x.op == "set_at" else x.args[2] if len(x.args) == 3 else None


def chain_of(x: Tensor, stored: Container[Tensor], values: Sizes) -> list[Tensor]:
    """The scatters that write over each other, the first one first."""
    chain, base = [x], base_of(x)
    while base is not None and base not in stored and in_order(base, values):
        chain.insert(0, base)
        base = base_of(base)
    return chain


def scattered(
    x: Tensor, target: Source, stored: Mapping[Tensor, Source], values: Sizes, free: int | None = None
) -> list[Nest]:
    """What was there before, and then each element of the updates at the place that is computed for it.

    The rows of the target are split in parts, so that each has one owner, who reads all indices in order. There are
    many where items run side by side; of many updates each reads its own.

    ``free``: where items run side by side, the number of the first workspace that is no other's.
    """
    e = elements(stored, values)
    side_by_side = free is not None
    chain, axis = chain_of(x, stored, values), x.params[0] if x.params else 0
    if free is not None and len(chain) == 1 and x.op != "put":
        several = Updates(x, *_updates(x), axis, _combine(x))
        if pays(several, e):
            return scattered_side_by_side(several, target, base_of(x), e, free)
    size = e.sized(x.dims[axis])
    inner = [each for each in _axes(x, e)[0] if each.name != f"i{axis}"]
    work = max(prod(size_of(d, values) for d in _updates(one)[0].dims) for one in chain)
    owners = prod(e.extents[each.name] for each in inner)
    if not side_by_side and inner and inner[-1].name == f"i{x.rank - 1}":
        owners = owners // max(1, min(e.extents[inner[-1].name], COLUMNS))
    parts = PARTS if owners < ENOUGH and work > SCATTERED else 1
    if side_by_side and work > MANY:
        while parts * owners < OWNERS and parts < size_of(size, values):
            parts *= 2
    step = e.sized((size + (parts - 1)) // parts) if parts > 1 else size
    part = e.extended(Axis("p", number(parts)))
    begin = part.leaf * step if parts > 1 else number(0)
    end = lowest(begin + step, size) if parts > 1 else size
    row = e.extended(Axis("row", size, begin, end))

    def around(k: int) -> Number:
        """The index along a dim of the target that is not the scattered one."""
        return number(0) if e.one(x.dims[k]) else Axis(f"i{k}", x.dims[k]).leaf

    here = tuple(row.leaf if k == axis else around(k) for k in range(x.rank))
    base = base_of(chain[0])
    value = e.cast(e.number(0, x.dtype) if base is None else e.at(base, here), x.dtype)
    stores = [Store(target, x.dims, value, e.linear(here, x), (), "", x.dtype, (row,))]
    for turn, one in enumerate(chain):
        updates, indices = _updates(one)
        count = 1 if one.op == "put" else indices.rank
        loops = tuple(
            e.extended(Axis(f"s{turn}_{k}", d)) for k, d in enumerate(updates.dims[axis : axis + count]) if not e.one(d)
        )
        leaves = {each.name: each.leaf for each in loops}
        entry = tuple(leaves.get(f"s{turn}_{k}", number(0)) for k in range(count))
        index = (*here[:axis], *entry, *here[axis + 1 :])
        given = e.at(indices, index if one.op == "put" else entry)
        at = e.index_of(given)
        anywhere = parts == 1 and size_of(size, values) > 0 and e.is_checked(given, size)
        there = () if anywhere else (at >= begin, at < end)
        if one.op == "set_at":
            at = e.index_of(e.checked(given, x.dims[axis], ()))
        place = e.linear((*here[:axis], at, *here[axis + 1 :]), x)
        stores.append(Store(target, x.dims, e.at(updates, index), place, there, _combine(one), x.dtype, loops, True))
    items = [*([part] if parts > 1 else []), *inner]
    return [Nest(tuple(items), tuple(stores), e)]


def _combine(x: Tensor) -> str:
    """How a :class:`Store` writes what a scatter does."""
    return "set" if x.op == "set_at" else "add"


def _updates(x: Tensor) -> tuple[Tensor, Tensor]:
    """What a scatter writes, and where."""
    return (x.args[1], x.args[2]) if x.op == "set_at" else (x.args[0], x.args[1])


def running(x: Tensor, target: Source, stored: Mapping[Tensor, Source], values: Sizes) -> Nest:
    """A scan: the axis is gone through in order, and what was reduced so far is stored."""
    e = elements(stored, values)
    (source,), (kind, at, reverse, exclusive) = x.args, x.params
    axes, index = _axes(x, e)
    turned = (*index[:at], x.dims[at] - 1 - index[at], *index[at + 1 :]) if reverse else index
    loops = tuple(axis for axis in axes if axis.name == f"i{at}")
    items = tuple(axis for axis in axes if axis.name != f"i{at}")
    if not loops:
        loops = (Axis(f"i{at}", x.dims[at]),)
    value = e.made("running", (e.at(source, turned),), (kind, loops[0], exclusive), x.dtype)
    return Nest(items, (Store(target, x.dims, value, e.linear(turned, x), (), "", x.dtype, loops, True),), e)


def _axes(x: Tensor, e: Elements) -> tuple[tuple[Axis, ...], Index]:
    """The axes of loops over a tensor, and the index of one of its elements."""
    axes = tuple(Axis(f"i{k}", d) for k, d in enumerate(x.dims) if not e.one(d))
    for axis in axes:
        e.extended(axis)
    leaves = {axis.name: axis.leaf for axis in axes}
    return axes, tuple(leaves.get(f"i{k}", number(0)) for k in range(x.rank))
