"""Gather and scatter primitives."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.expr.functions import maximum, minimum
from fluidlite.expr.number import Numeric, number, product
from fluidlite.expr.tensor import Tensor, refuse, same_dims, tensor, wide
from fluidlite.expr.views import full, iota, normal_axis, reshape

MODES = ("check", "clamp", "zero")
"""The handling of an index out of range: raise, clamp, or read 0."""


def _mode(mode: str) -> str:
    if mode not in MODES:
        refuse(f"mode {mode!r} is none of {', '.join(MODES)}")
    return mode


def _indices(index: Tensor) -> Tensor:
    if not index.dtype.startswith(("int", "uint")):
        refuse(f"indices are {index.dtype}; expected integers")
    return index


def in_range(index: Tensor, size: Numeric) -> bool:
    """Whether indices are proven to be in ``[0, size)``: they were checked or clamped."""
    bound = number(size)
    if index.op == "checked":
        return bool(index.params[0].key == bound.key)
    if index.op == "step_table":
        return True
    return _clamps(index, "minimum", (bound - 1).key) and _clamps(index.args[0], "maximum", "0")


def _clamps(index: Tensor, kind: str, end: str) -> bool:
    """Whether indices are the ``kind`` (minimum or maximum) of other indices and the number ``end``."""
    if index.op != "map" or index.params[0] != kind or index.args[1].op != "number":
        return False
    return bool(index.args[1].params[0].key == end)


def take(x: Tensor, index: Tensor, axis: int = 0, mode: str = "check") -> Tensor:
    """Gather slices of ``x`` along an axis; the dims of ``index`` replace the axis."""
    at = normal_axis(axis, x.rank)
    dims = (*x.dims[:at], *index.dims, *x.dims[at + 1 :])
    return tensor("take", (x, _indices(index)), (at, _mode(mode)), dims, x.dtype)


def pick(x: Tensor, index: Tensor, axis: int = -1, mode: str = "check") -> Tensor:
    """Gather elements of ``x`` along an axis, one for each element of ``index``; all other dims are equal."""
    at = normal_axis(axis, x.rank)
    rest = [d for i, d in enumerate(x.dims) if i != at]
    if index.rank != x.rank or not same_dims(rest, [d for i, d in enumerate(index.dims) if i != at]):
        refuse(f"pick from {list(x.dims)} by indices of {list(index.dims)} along axis {at}")
    return tensor("pick", (x, _indices(index)), (at, _mode(mode)), index.dims, x.dtype)


def checked(index: Tensor, size: Numeric) -> Tensor:
    """Require ``0 <= index < size``: an index out of range raises an OutOfRangeError."""
    return (
        index
        if in_range(index, size)
        else tensor("checked", (_indices(index),), (number(size),), index.dims, index.dtype)
    )


def _check_updates(updates: Tensor, index: Tensor, axis: int, what: str) -> None:
    """Require updates to have the dims of ``index`` in place of the axis."""
    trailing = updates.rank - axis - index.rank
    if trailing < 0 or not same_dims(updates.dims[axis : axis + index.rank], index.dims):
        refuse(f"{what} of {list(updates.dims)} by indices of {list(index.dims)} at axis {axis}")


def clamped(index: Tensor, size: Numeric) -> Tensor:
    """Clamp indices to ``[0, size - 1]``."""
    return index if in_range(index, size) else minimum(maximum(_indices(index), 0), number(size) - 1)


def add_at(updates: Tensor, index: Tensor, axis: int, size: Numeric, base: Tensor | None = None) -> Tensor:
    """Scatter-add: slices of ``updates`` are added to ``base`` (or zeros), which has ``size`` elements along ``axis``.

    ``updates`` has the dims of ``index`` in place of the axis; an index out of range adds nothing. Additions with
    equal indices happen in any order.
    """
    source = wide(updates)
    _check_updates(updates, index, axis, "add_at")
    dims = (*updates.dims[:axis], number(size), *updates.dims[axis + index.rank :])
    return _scatter("add_at", source, index, axis, dims, base)


def _scatter(
    op: str, updates: Tensor, index: Tensor, axis: int, dims: Sequence[Numeric], base: Tensor | None
) -> Tensor:
    """Add ``updates`` to ``base``, or to zeros with ``dims``."""
    if base is None:
        return tensor(op, (updates, _indices(index)), (axis,), dims, updates.dtype)
    begin = wide(base)
    if begin.dtype != updates.dtype or not same_dims(base.dims, dims):
        refuse(f"{op} of {updates.dtype}{list(dims)} to {begin.dtype}{list(base.dims)}")
    return tensor(op, (updates, _indices(index), begin), (axis,), base.dims, updates.dtype)


def set_at(x: Tensor, updates: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """Scatter: slices of ``x`` along an axis are replaced by ``updates``; for equal indices the last one wins.

    ``updates`` has the dims of ``index`` in place of the axis; indices are checked.
    """
    at = normal_axis(axis, x.rank)
    _check_updates(updates, index, at, "set_at")
    rest = (*updates.dims[:at], *updates.dims[at + index.rank :])
    if x.dtype != updates.dtype or not same_dims(rest, (*x.dims[:at], *x.dims[at + 1 :])):
        refuse(f"set_at of {updates.dtype}{list(updates.dims)} in {x.dtype}{list(x.dims)} at axis {at}")
    return tensor("set_at", (x, updates, _indices(index)), (at,), x.dims, x.dtype)


def stays(index: Tensor, size: Numeric) -> Tensor:
    """Whether each element of ``index`` is the last with its value: whether ``set_at`` keeps its update."""
    count = reshape(iota((product(index.dims),), 0), index.dims)
    return take(set_at(full((size,), -1, "int64"), count, index), index) == count


def put(updates: Tensor, index: Tensor, axis: int, size: Numeric, base: Tensor | None = None) -> Tensor:
    """Scatter-add of elements: ``updates`` are added to ``base`` (or zeros), with ``size`` elements along ``axis``.

    An index out of range adds nothing.
    """
    source, at = wide(updates), normal_axis(axis, updates.rank)
    if not same_dims(updates.dims, index.dims):
        refuse(f"put of {list(updates.dims)} by indices of {list(index.dims)}")
    dims = [number(size) if i == at else d for i, d in enumerate(updates.dims)]
    return _scatter("put", source, index, at, dims, base)
