"""Array calls that reduce, scan and choose."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fluidlite.codegen import sums
from fluidlite.codegen.functions import dtype_object
from fluidlite.codegen.sums import pairwise_sum
from fluidlite.expr.reductions import of_nothing
from fluidlite.expr.step_order import table_values
from fluidlite.render.array_moves import FEW, concat, full, iota, zeros
from fluidlite.render.memory import strided, writable

BUFFER, LARGE = np.getbufsize(), 1 << 16
"""Elements that NumPy buffers when nobody says another number, and from how many on a reduction is worth saying so."""


def reduce(xp: Any, kind: str, x: Any, axes: Sequence[int], dtype: str) -> Any:
    """Along axes, which stay as 1."""
    gone = tuple(axes)
    if kind == "sum":
        return pairwise_sum(xp, x, gone, dtype_object(xp, dtype))
    if kind == "prod":
        return xp.prod(x, axis=gone, dtype=dtype_object(xp, dtype), keepdims=True)
    if not prod(x.shape):
        dims = tuple(1 if axis in gone else size for axis, size in enumerate(x.shape))
        return full(xp, dims, of_nothing(kind, dtype), dtype, x)
    if type(x) is not np.ndarray or x.size < LARGE:
        return getattr(xp, kind)(x, axis=gone, keepdims=True)
    before = np.setbufsize(BUFFER)  # NumPy reduces no longer part of a row at once, and a run's buffer is small
    try:
        return getattr(xp, kind)(x, axis=gone, keepdims=True)
    finally:
        np.setbufsize(before)


def product_sum(xp: Any, a: Any, b: Any, axes: Sequence[int], dtype: str) -> Any:
    """The sum of a product along axes, which stay as 1."""
    return sums.product_sum(xp, a, b, tuple(axes), dtype_object(xp, dtype))


def arg(xp: Any, kind: str, x: Any, axis: int) -> Any:
    """The index of the first maximum, or minimum, along an axis, which stays as 1."""
    if not prod(x.shape):  # no results
        return full(xp, [1 if k == axis else size for k, size in enumerate(x.shape)], 0, "int64", x)
    if x.shape[axis] <= FEW and axis < x.ndim - 1:
        parts = [x[(*(slice(None),) * axis, slice(k, k + 1), ...)] for k in range(x.shape[axis])]
        return first_of(xp, kind, x, parts)
    found = None
    if hasattr(x, "__array_interface__"):
        found = _arg_by_columns(xp, kind, x, axis) if prod(x.shape[axis + 1 :]) > 1 else None
    elif xp.isdtype(x.dtype, "real floating"):  # the standard leaves open what is done with NaN
        nan = xp.isnan(x)
        first = xp.argmax(xp.astype(nan, dtype_object(xp, "uint8")), axis=axis, keepdims=True)
        rest = getattr(xp, f"arg{kind}")(xp.where(nan, xp.zeros_like(x), x), axis=axis, keepdims=True)
        found = xp.where(xp.any(nan, axis=axis, keepdims=True), first, rest)
    if found is None:
        found = getattr(xp, f"arg{kind}")(x, axis=axis, keepdims=True)
    return xp.astype(found, dtype_object(xp, "int64"), copy=False)


def _arg_by_columns(xp: Any, kind: str, x: Any, axis: int) -> Any:
    """Indices along a strided axis: NumPy finds maxima fast there, but not where they are. None if one is NaN."""
    outer, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    parts, found = xp.reshape(x, (outer, x.shape[axis], inner)), xp.empty((outer, inner), xp.int64)
    for i in range(outer):
        best = getattr(xp, kind)(parts[i], axis=0)
        if (best != best).any():
            return None
        rows, columns = xp.nonzero(parts[i] == best)
        found[i, columns[::-1]] = rows[::-1]  # of several the first one is written last
    return xp.reshape(found, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))


def first_of(xp: Any, kind: str, x: Any, parts: Sequence[Any]) -> Any:
    """Which of some parts of an array has the first maximum, or minimum, element by element; NaN is it."""
    join = xp.maximum if kind == "max" else xp.minimum
    small, best, number = dtype_object(xp, "uint8"), parts[0], None
    known = strided(x) and bool((x_max := x.max()) == x_max)  # nothing is NaN
    for k, part in enumerate(parts[1:], 1):
        if known:
            better = part > best if kind == "max" else part < best
        else:
            worse = part <= best if kind == "max" else part >= best
            better = xp.logical_not(xp.logical_or(worse, best != best))
        here = xp.astype(better, small)
        number = here if number is None else xp.maximum(number, here * k)  # a choice for each element would be slower
        if k < len(parts) - 1:
            best = join(best, part)
    return xp.astype(xp.zeros_like(best, dtype=small) if number is None else number, dtype_object(xp, "int64"))


def _accumulated(xp: Any, join: Any, x: Any, axis: int, reverse: bool, exclusive: bool, out: Any) -> Any:
    """Running sums or products by NumPy, written to ``out``: across many elements, a slice after the other is faster.

    Measured on [2048, 512] along the first axis: 5 ms in place of 20.
    """
    dims = (prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]))
    source, target = xp.reshape(x, dims), xp.reshape(out, dims)
    if reverse:
        source, target = source[:, ::-1], target[:, ::-1]
    if exclusive:
        target[:, :1] = join.identity
        source, target = source[:, :-1], target[:, 1:]
    if dims[2] < SLICE_MIN_INNER or dims[0] * dims[2] < SLICE_MIN_ELEMENTS:
        join.accumulate(source, 1, target.dtype, target)
        return out
    target[:, :1] = source[:, :1]
    for i in range(1, source.shape[1]):
        join(target[:, i - 1], source[:, i], target[:, i])
    return out


SLICE_MIN_INNER, SLICE_MIN_ELEMENTS = 16, 512
"""Elements beside each other, and in all, of a slice from which on slices are added one by one."""


def scan(xp: Any, kind: str, x: Any, axis: int, reverse: bool, exclusive: bool, out: Any = None) -> Any:
    """Running sums, products, maxima or minima; parts twice as long each time where the namespace has none."""
    if kind in ("sum", "prod") and prod(x.shape) and hasattr(x, "__array_interface__"):
        made = out if writable(out, x) else xp.empty(x.shape, dtype=x.dtype)
        return _accumulated(xp, {"sum": xp.add, "prod": xp.multiply}[kind], x, axis, reverse, exclusive, made)
    size = x.shape[axis]
    if reverse:
        x = xp.flip(x, axis=axis)
    if exclusive:
        first = [slice(None)] * x.ndim
        first[axis] = slice(0, max(size - 1, 0))
        dims = list(x.shape)
        dims[axis] = min(size, 1)
        begin = full(xp, dims, 1 if kind == "prod" else 0, str(x.dtype).rpartition(".")[2], x)
        x = concat(xp, [begin, x[tuple(first)]], axis)
    own = getattr(xp, {"sum": "cumulative_sum", "prod": "cumulative_prod"}.get(kind, "none"), None)
    if own is not None:
        found = own(x, axis=axis, dtype=x.dtype)
    else:
        found, step = x, 1
        join = {"sum": xp.add, "prod": xp.multiply, "max": xp.maximum, "min": xp.minimum}[kind]
        while step < size:
            head, tail, body = ([slice(None)] * x.ndim for _ in range(3))
            head[axis], tail[axis], body[axis] = slice(0, step), slice(step, None), slice(0, size - step)
            found = concat(xp, [found[tuple(head)], join(found[tuple(tail)], found[tuple(body)])], axis)
            step *= 2
    return xp.flip(found, axis=axis) if reverse else found


def recur(xp: Any, a: Any, b: Any, axis: int, reverse: bool) -> Any:
    """``y[i] = a[i] y[i - 1] + b[i]``; pairs of factor and summand are composed, twice as many each time."""
    if reverse:
        a, b = xp.flip(a, axis=axis), xp.flip(b, axis=axis)
    size, step = b.shape[axis], 1
    while step < size:
        head, tail, body = ([slice(None)] * b.ndim for _ in range(3))
        head[axis], tail[axis], body[axis] = slice(0, step), slice(step, None), slice(0, size - step)
        h, t, r = tuple(head), tuple(tail), tuple(body)
        b = concat(xp, [b[h], a[t] * b[r] + b[t]], axis)
        a = concat(xp, [a[h], a[t] * a[r]], axis)
        step *= 2
    return xp.flip(b, axis=axis) if reverse else b


def segment_of(xp: Any, offsets: Any, rows: int) -> Any:
    """The segment of each row: how many of the later offsets are not behind it."""
    row = iota(xp, (rows,), 0, "int64", offsets)
    if hasattr(xp, "searchsorted") and rows and offsets.shape[0] > 1:
        return xp.astype(xp.searchsorted(offsets[1:], row, side="right"), row.dtype)
    behind = xp.reshape(offsets[1:], (1, -1)) <= xp.reshape(row, (-1, 1))
    return xp.sum(xp.astype(behind, row.dtype), axis=1, dtype=row.dtype)


def step_table(kind: str, flag: bool, offsets: Sequence[int]) -> tuple[int, ...]:
    """Rows by step, of :func:`fluidlite.expr.step_order.table_values`."""
    return tuple(table_values(kind, flag, offsets).tolist())


def segment(xp: Any, kind: str, x: Any, offsets: Any) -> Any:
    """Sums, maxima or minima of runs of rows.

    A running one starts anew with each run: pairs of a start and a value are composed, twice as many rows each time.
    The last row of a run has its result. Sums so are by pairs.
    """
    rows, runs = x.shape[0], offsets.shape[0] - 1
    if not rows or not runs:
        return zeros(xp, (runs, *x.shape[1:]), x)
    join = {"sum": xp.add, "max": xp.maximum, "min": xp.minimum}[kind]
    of = segment_of(xp, offsets, rows)
    starts = concat(xp, [xp.ones_like(of[:1]), xp.astype(of[1:] != of[:-1], of.dtype)], 0) != 0
    wide, step = (rows, *(1,) * (x.ndim - 1)), 1
    while step < rows:
        new = xp.where(
            xp.reshape(starts[step:], (rows - step, *wide[1:])),
            x[step:, ...],
            join(x[: rows - step, ...], x[step:, ...]),
        )
        x = concat(xp, [x[:step, ...], new], 0)
        starts = concat(xp, [starts[:step], starts[step:] | starts[: rows - step]], 0)
        step *= 2
    last = xp.maximum(offsets[1:] - 1, xp.zeros_like(offsets[1:]))
    found = xp.take(x, last, axis=0)
    some = xp.reshape(offsets[1:] > offsets[:-1], (runs, *wide[1:]))
    return xp.where(some, found, xp.zeros_like(found))
