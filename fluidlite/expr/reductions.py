"""Reductions, scans and contractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.number import Number, lowest, number, product
from fluidlite.expr.tensor import Tensor, broadcast_to, cast, meet, need, refuse, same_dims, slot_of, tensor, wide
from fluidlite.expr.views import normal_axes, normal_axis, reshape

Axes = int | Sequence[int] | None


def reduce(kind: str, x: Tensor, axes: Axes = None, keep: bool = False, empty: bool = False) -> Tensor:
    """Reduce along axes (None: all); with ``keep`` they stay, with size 1. ``kind``: sum, prod, max, min, all or any.

    Sums are accumulated in float32 or float64, pairwise; sums of integers wrap. A maximum is NaN if an element is.
    """
    reduced_axes = normal_axes(axes, x.rank)
    source = cast(x, "bool") if kind in ("all", "any") else wide(x)
    if source.dtype == "bool" and kind in ("sum", "prod"):
        source = cast(source, "int32")
    dims = [number(1) if axis in reduced_axes else d for axis, d in enumerate(x.dims)]
    if kind in ("max", "min") and not empty:
        _need_elements(x, reduced_axes)
    result = tensor("reduce", (source,), (kind, reduced_axes), dims, source.dtype) if reduced_axes else source
    return result if keep else reshape(result, [d for axis, d in enumerate(dims) if axis not in reduced_axes])


def reduce_sum(x: Tensor, axes: Axes = None, keep: bool = False) -> Tensor:
    """The sum; 0 if there are no elements."""
    return reduce("sum", x, axes, keep)


def reduce_mean(x: Tensor, axes: Axes = None, keep: bool = False) -> Tensor:
    """The mean; NaN if there are no elements."""
    return reduce("sum", x, axes, keep) / count(x, axes)


def sum_to(x: Tensor, dims: Sequence[Number]) -> Tensor:
    """The sum over the axes along which a tensor of ``dims`` broadcasts to the dims of ``x``."""
    lead = x.rank - len(dims)
    axes = [
        axis
        for axis, d in enumerate(x.dims)
        if axis < lead or (dims[axis - lead].key != d.key and bool(dims[axis - lead] == 1))
    ]
    total = reduce_sum(x, axes, keep=True) if axes else x
    return broadcast_to(reshape(total, total.dims[lead:]), dims)


def reduce_prod(x: Tensor, axes: Axes = None, keep: bool = False) -> Tensor:
    """The product; 1 if there are no elements."""
    return reduce("prod", x, axes, keep)


def reduce_max(x: Tensor, axes: Axes = None, keep: bool = False, empty: bool = False) -> Tensor:
    """The maximum; NaN if an element is. With ``empty`` the maximum of no elements is the lowest, else an error."""
    return reduce("max", x, axes, keep, empty)


def reduce_min(x: Tensor, axes: Axes = None, keep: bool = False, empty: bool = False) -> Tensor:
    """The minimum; NaN if an element is. With ``empty`` the minimum of no elements is the highest, else an error."""
    return reduce("min", x, axes, keep, empty)


def reduce_all(x: Tensor, axes: Axes = None, keep: bool = False) -> Tensor:
    """Whether all elements are true."""
    return reduce("all", x, axes, keep)


def reduce_any(x: Tensor, axes: Axes = None, keep: bool = False) -> Tensor:
    """Whether any element is true."""
    return reduce("any", x, axes, keep)


def count(x: Tensor, axes: Axes = None) -> Number:
    """The number of elements of ``x`` that a reduction along axes combines to one."""
    return product(x.dims[axis] for axis in normal_axes(axes, x.rank))


def reduction_identity(kind: str, dtype: str) -> Any:
    """The identity of a reduction: its result for no elements."""
    if kind in ("max", "min"):
        if dtype in FLOATS:
            return -math.inf if kind == "max" else math.inf
        limits = np.iinfo(dtype)
        return limits.min if kind == "max" else limits.max
    return kind in ("prod", "all")


def _need_elements(x: Tensor, axes: Sequence[int]) -> None:
    """Require an element to reduce, unless there are no results either."""
    results = product(d for axis, d in enumerate(x.dims) if axis not in axes)
    has_results, is_empty = lowest(results, 1), 1 - lowest(count(x, axes), 1)
    need(has_results * is_empty == 0, slot_of(x), "1 element or more in the dims to reduce")


def _arg(kind: str, x: Tensor, axis: int, keep: bool) -> Tensor:
    at = normal_axis(axis, x.rank)
    _need_elements(x, (at,))
    dims = [number(1) if i == at else d for i, d in enumerate(x.dims)]
    index = tensor("arg", (wide(x),), (kind, at), dims, "int64")
    return index if keep else reshape(index, [d for i, d in enumerate(dims) if i != at])


def argmax(x: Tensor, axis: int, keep: bool = False) -> Tensor:
    """The index of the maximum along an axis, int64: the first of equal elements, or the first NaN."""
    return _arg("max", x, axis, keep)


def argmin(x: Tensor, axis: int, keep: bool = False) -> Tensor:
    """The index of the minimum along an axis, int64: the first of equal elements, or the first NaN."""
    return _arg("min", x, axis, keep)


def scan(kind: str, x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """Running ``sum``, ``prod``, ``max`` or ``min`` along an axis; ``exclusive`` omits the element itself."""
    if kind not in ("sum", "prod", "max", "min"):
        refuse(f"scan of kind {kind!r}")
    if exclusive and kind in ("max", "min"):
        refuse(f"scan of kind {kind!r} has no value in front of the first element")
    source = wide(x)
    if source.dtype == "bool":
        source = cast(source, "int32")
    return tensor("scan", (source,), (kind, normal_axis(axis, x.rank), reverse, exclusive), x.dims, source.dtype)


def recur(a: Tensor, b: Tensor, axis: int, reverse: bool = False) -> Tensor:
    """The linear recurrence ``y[i] = a[i] y[i - 1] + b[i]`` along an axis, from 0; ``reverse`` runs from the end.

    Running sums and products, their derivatives, and its own derivative have this form.
    """
    first, second = wide(a), wide(b)
    if first.dtype != second.dtype or not same_dims(first.dims, second.dims):
        refuse(f"recur of {first} and {second}")
    return tensor("recur", (first, second), (normal_axis(axis, a.rank), reverse), first.dims, first.dtype)


def contract(a: Tensor, b: Tensor, letters: str) -> Tensor:
    """Sums of products as in einsum, ``"ij,jk->ik"``: a letter for each axis; letters that the result lacks are summed.

    Raises
    ------
    ProgramError
        If a letter has two sizes, appears twice in one operand, or appears only in the result.
    """
    operands, _, out = letters.partition("->")
    a_names, _, b_names = operands.partition(",")
    if len(a_names) != a.rank or len(b_names) != b.rank or any(len(set(s)) != len(s) for s in (a_names, b_names, out)):
        refuse(f"contract {letters!r} of {a.rank} and {b.rank} dims")
    sizes: dict[str, Number] = {}
    for names, x in ((a_names, a), (b_names, b)):
        for name, d in zip(names, x.dims, strict=True):
            if not same_dims([sizes.setdefault(name, d)], [d]):
                refuse(f"contract {letters!r}: {name} is {sizes[name]} and {d}")
    if not set(out) <= set(sizes):
        refuse(f"contract {letters!r}: the result has an axis of no operand")
    dtype = meet([a.dtype, b.dtype])
    if dtype not in FLOATS and dtype not in ("int32", "int64"):
        dtype = "int32"
    return tensor("contract", (cast(a, dtype), cast(b, dtype)), (a_names, b_names, out), [sizes[n] for n in out], dtype)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix products over the last two axes; leading axes are equal, or ``b`` has none."""
    if a.rank < 2 or b.rank < 2:
        refuse(f"matmul of {a.rank} and {b.rank} dims")
    lead = "abcdefgh"[: a.rank - 2]
    if b.rank == 2:
        return contract(a, b, f"{lead}ij,jk->{lead}ik")
    return contract(a, b, f"{lead}ij,{lead}jk->{lead}ik")
