"""Primitives that read or add at computed indices."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.expr.functions import maximum, minimum
from fluidlite.expr.number import Numeric, number, product
from fluidlite.expr.tensor import Tensor, refuse, same_dims, tensor, wide
from fluidlite.expr.views import full, iota, normal_axis, reshape

MODES = ("check", "clamp", "zero")
"""What an index out of range does: it raises, it is moved to the nearest, or it reads 0."""


def _mode(mode: str) -> str:
    if mode not in MODES:
        refuse(f"mode {mode!r} is none of {', '.join(MODES)}")
    return mode


def _indices(index: Tensor) -> Tensor:
    if not index.dtype.startswith(("int", "uint")):
        refuse(f"indices are {index.dtype}; expected integers")
    return index


def in_range(index: Tensor, size: Numeric) -> bool:
    """Whether indices are known to be at least 0 and less than a size: they were checked, or clamped to it."""
    bound = number(size)
    if index.op == "checked":
        return bool(index.params[0].key == bound.key)
    if index.op == "step_table":
        return True
    return _clamps(index, "minimum", (bound - 1).key) and _clamps(index.args[0], "maximum", "0")


def _clamps(index: Tensor, kind: str, end: str) -> bool:
    """Whether indices are the ``kind`` of others and a number."""
    if index.op != "map" or index.params[0] != kind or index.args[1].op != "number":
        return False
    return bool(index.args[1].params[0].key == end)


def take(x: Tensor, index: Tensor, axis: int = 0, mode: str = "check") -> Tensor:
    """The parts of ``x`` along an axis that ``index`` names; its dims stand where the axis was."""
    at = normal_axis(axis, x.rank)
    dims = (*x.dims[:at], *index.dims, *x.dims[at + 1 :])
    return tensor("take", (x, _indices(index)), (at, _mode(mode)), dims, x.dtype)


def pick(x: Tensor, index: Tensor, axis: int = -1, mode: str = "check") -> Tensor:
    """For each element of ``index``, the element of ``x`` at it along an axis; all other dims are equal."""
    at = normal_axis(axis, x.rank)
    mine = [d for i, d in enumerate(x.dims) if i != at]
    if index.rank != x.rank or not same_dims(mine, [d for i, d in enumerate(index.dims) if i != at]):
        refuse(f"pick from {list(x.dims)} by indices of {list(index.dims)} along axis {at}")
    return tensor("pick", (x, _indices(index)), (at, _mode(mode)), index.dims, x.dtype)


def checked(index: Tensor, size: Numeric) -> Tensor:
    """Indices that must lie in ``0 <= index < size``: one that does not is an OutOfRangeError."""
    return (
        index
        if in_range(index, size)
        else tensor("checked", (_indices(index),), (number(size),), index.dims, index.dtype)
    )


def _parts(updates: Tensor, index: Tensor, axis: int, what: str) -> None:
    """Require updates to have the dims of indices where an axis was."""
    behind = updates.rank - axis - index.rank
    if behind < 0 or not same_dims(updates.dims[axis : axis + index.rank], index.dims):
        refuse(f"{what} of {list(updates.dims)} by indices of {list(index.dims)} at axis {axis}")


def clamped(index: Tensor, size: Numeric) -> Tensor:
    """Indices of which those below 0 become 0, and those of a size or more the last one below it."""
    return index if in_range(index, size) else minimum(maximum(_indices(index), 0), number(size) - 1)


def add_at(updates: Tensor, index: Tensor, axis: int, size: Numeric, base: Tensor | None = None) -> Tensor:
    """``base`` (or zeros), ``size`` along ``axis``, to which each part of ``updates`` is added where its index says.

    ``updates`` has the dims of ``index`` where the axis of the result is; an index out of range adds nothing. In which
    order parts of equal index are added is for the rendering to choose.
    """
    source = wide(updates)
    _parts(updates, index, axis, "add_at")
    dims = (*updates.dims[:axis], number(size), *updates.dims[axis + index.rank :])
    return _added("add_at", source, index, axis, dims, base)


def _added(op: str, updates: Tensor, index: Tensor, axis: int, dims: Sequence[Numeric], base: Tensor | None) -> Tensor:
    """``updates`` added to ``base`` or to zeros of ``dims``."""
    if base is None:
        return tensor(op, (updates, _indices(index)), (axis,), dims, updates.dtype)
    begin = wide(base)
    if begin.dtype != updates.dtype or not same_dims(base.dims, dims):
        refuse(f"{op} of {updates.dtype}{list(dims)} to {begin.dtype}{list(base.dims)}")
    return tensor(op, (updates, _indices(index), begin), (axis,), base.dims, updates.dtype)


def set_at(x: Tensor, updates: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """``x`` with the parts along an axis that ``index`` names replaced: of several for one part the last counts.

    ``updates`` has the dims of ``index`` where the axis of ``x`` is; indices are checked.
    """
    at = normal_axis(axis, x.rank)
    _parts(updates, index, at, "set_at")
    others = (*updates.dims[:at], *updates.dims[at + index.rank :])
    if x.dtype != updates.dtype or not same_dims(others, (*x.dims[:at], *x.dims[at + 1 :])):
        refuse(f"set_at of {updates.dtype}{list(updates.dims)} in {x.dtype}{list(x.dims)} at axis {at}")
    return tensor("set_at", (x, updates, _indices(index)), (at,), x.dims, x.dtype)


def stays(index: Tensor, size: Numeric) -> Tensor:
    """Whether each of ``index`` is the last that names its part of ``size``: whether set_at keeps its update."""
    count = reshape(iota((product(index.dims),), 0), index.dims)
    return take(set_at(full((size,), -1, "int64"), count, index), index) == count


def put(updates: Tensor, index: Tensor, axis: int, size: Numeric, base: Tensor | None = None) -> Tensor:
    """``base`` (or zeros), ``size`` along ``axis``, to which each element of ``updates`` is added at its index.

    An index out of range adds nothing.
    """
    source, at = wide(updates), normal_axis(axis, updates.rank)
    if not same_dims(updates.dims, index.dims):
        refuse(f"put of {list(updates.dims)} by indices of {list(index.dims)}")
    dims = [number(size) if i == at else d for i, d in enumerate(updates.dims)]
    return _added("put", source, index, at, dims, base)
