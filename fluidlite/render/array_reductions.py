"""Array functions that reduce and scan."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fluidlite.codegen import sums
from fluidlite.codegen.functions import dtype_object
from fluidlite.codegen.sums import pairwise_sum
from fluidlite.expr.reductions import reduction_identity
from fluidlite.expr.step_order import table_values
from fluidlite.render.array_moves import MAX_SHORT_AXIS, MIN_ANALYZED_ELEMENTS, concat, full, iota, zeros
from fluidlite.render.memory import strided, writable

BUFFER_ELEMENTS, MIN_BUFFERED_ELEMENTS = np.getbufsize(), 1 << 16
"""Elements of NumPy's default buffer, and of an array from which a reduction restores that size."""


def reduce(xp: Any, kind: str, x: Any, axes: Sequence[int], dtype: str) -> Any:
    """Reduce along axes, which are kept with length 1."""
    reduced = tuple(axes)
    if kind == "sum":
        return pairwise_sum(xp, x, reduced, dtype_object(xp, dtype))
    if kind == "prod":
        return xp.prod(x, axis=reduced, dtype=dtype_object(xp, dtype), keepdims=True)
    if not prod(x.shape):
        dims = tuple(1 if axis in reduced else size for axis, size in enumerate(x.shape))
        return full(xp, dims, reduction_identity(kind, dtype), dtype, x)
    if type(x) is not np.ndarray or x.size < MIN_BUFFERED_ELEMENTS:
        return getattr(xp, kind)(x, axis=reduced, keepdims=True)
    before = np.setbufsize(BUFFER_ELEMENTS)  # NumPy reduces a row by parts of this size, and a run sets a small one
    try:
        return getattr(xp, kind)(x, axis=reduced, keepdims=True)
    finally:
        np.setbufsize(before)


def product_sum(xp: Any, a: Any, b: Any, axes: Sequence[int], dtype: str) -> Any:
    """The sum of a product along axes, which are kept with length 1."""
    return sums.product_sum(xp, a, b, tuple(axes), dtype_object(xp, dtype))


def arg(xp: Any, kind: str, x: Any, axis: int) -> Any:
    """The index of the first maximum, or minimum, along an axis, which is kept with length 1."""
    if not prod(x.shape):  # no results
        return full(xp, [1 if k == axis else size for k, size in enumerate(x.shape)], 0, "int64", x)
    if x.shape[axis] <= MAX_SHORT_AXIS and axis < x.ndim - 1 and x.size >= MIN_ANALYZED_ELEMENTS:
        parts = [x[(*(slice(None),) * axis, slice(k, k + 1), ...)] for k in range(x.shape[axis])]
        return first_of(xp, kind, x, parts)
    if hasattr(x, "__array_interface__") or not xp.isdtype(x.dtype, "real floating"):
        index = getattr(xp, f"arg{kind}")(x, axis=axis, keepdims=True)
    else:  # the array API standard does not specify NaN
        nan = xp.isnan(x)
        first = xp.argmax(xp.astype(nan, dtype_object(xp, "uint8")), axis=axis, keepdims=True)
        rest = getattr(xp, f"arg{kind}")(xp.where(nan, xp.zeros_like(x), x), axis=axis, keepdims=True)
        index = xp.where(xp.any(nan, axis=axis, keepdims=True), first, rest)
    return xp.astype(index, dtype_object(xp, "int64"), copy=False)


def first_of(xp: Any, kind: str, x: Any, parts: Sequence[Any]) -> Any:
    """Elementwise, the number of the part with the first maximum, or minimum; a NaN counts as that."""
    join = xp.maximum if kind == "max" else xp.minimum
    small, best, number = dtype_object(xp, "uint8"), parts[0], None
    has_no_nan = strided(x) and bool((x_max := x.max()) == x_max)  # there is no NaN
    for k, part in enumerate(parts[1:], 1):
        if has_no_nan:
            better = part > best if kind == "max" else part < best
        else:
            worse = part <= best if kind == "max" else part >= best
            better = xp.logical_not(xp.logical_or(worse, best != best))
        is_better = xp.astype(better, small)
        # the maximum is faster than an elementwise selection
        number = is_better if number is None else xp.maximum(number, is_better * k)
        if k < len(parts) - 1:
            best = join(best, part)
    return xp.astype(xp.zeros_like(best, dtype=small) if number is None else number, dtype_object(xp, "int64"))


def _accumulated(xp: Any, join: Any, x: Any, axis: int, reverse: bool, exclusive: bool, out: Any) -> Any:
    """Cumulative sums or products by NumPy, written to ``out``; across large slices one call per slice is faster.

    Measured on [2048, 512] along the first axis: 5 ms instead of 20.
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
"""Contiguous elements, and all elements, of a slice from which a scan makes one call per slice."""


def scan(xp: Any, kind: str, x: Any, axis: int, reverse: bool, exclusive: bool, out: Any = None) -> Any:
    """Cumulative sums, products, maxima or minima; by recursive doubling if the namespace has no function for it."""
    if kind in ("sum", "prod") and prod(x.shape) and hasattr(x, "__array_interface__"):
        output = out if writable(out, x) else xp.empty(x.shape, dtype=x.dtype)
        return _accumulated(xp, {"sum": xp.add, "prod": xp.multiply}[kind], x, axis, reverse, exclusive, output)
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
    namespace_scan = getattr(xp, {"sum": "cumulative_sum", "prod": "cumulative_prod"}.get(kind, "none"), None)
    if namespace_scan is not None:
        result = namespace_scan(x, axis=axis, dtype=x.dtype)
    else:
        result, step = x, 1
        join = {"sum": xp.add, "prod": xp.multiply, "max": xp.maximum, "min": xp.minimum}[kind]
        while step < size:
            head, tail, body = ([slice(None)] * x.ndim for _ in range(3))
            head[axis], tail[axis], body[axis] = slice(0, step), slice(step, None), slice(0, size - step)
            result = concat(xp, [result[tuple(head)], join(result[tuple(tail)], result[tuple(body)])], axis)
            step *= 2
    return xp.flip(result, axis=axis) if reverse else result


def recur(xp: Any, a: Any, b: Any, axis: int, reverse: bool) -> Any:
    """The linear recurrence ``y[i] = a[i] y[i - 1] + b[i]``, by recursive doubling of (factor, summand) pairs."""
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
    """The segment of each row: the number of offsets after the first that do not exceed the row."""
    row = iota(xp, (rows,), 0, "int64", offsets)
    if hasattr(xp, "searchsorted") and rows and offsets.shape[0] > 1:
        return xp.astype(xp.searchsorted(offsets[1:], row, side="right"), row.dtype)
    behind = xp.reshape(offsets[1:], (1, -1)) <= xp.reshape(row, (-1, 1))
    return xp.sum(xp.astype(behind, row.dtype), axis=1, dtype=row.dtype)


def step_table(kind: str, flag: bool, offsets: Sequence[int]) -> tuple[int, ...]:
    """The table of rows by step of :func:`fluidlite.expr.step_order.table_values`."""
    return tuple(table_values(kind, flag, offsets).tolist())


def segment(xp: Any, kind: str, x: Any, offsets: Any) -> Any:
    """Sums, maxima or minima of segments of rows.

    A segmented scan by recursive doubling of (start flag, value) pairs; the last row of a segment has its result. So
    sums are pairwise.
    """
    rows, runs = x.shape[0], offsets.shape[0] - 1
    if not rows or not runs:
        return zeros(xp, (runs, *x.shape[1:]), x)
    join = {"sum": xp.add, "max": xp.maximum, "min": xp.minimum}[kind]
    segments = segment_of(xp, offsets, rows)
    starts = concat(xp, [xp.ones_like(segments[:1]), xp.astype(segments[1:] != segments[:-1], segments.dtype)], 0) != 0
    dims, step = (rows, *(1,) * (x.ndim - 1)), 1
    while step < rows:
        new = xp.where(
            xp.reshape(starts[step:], (rows - step, *dims[1:])),
            x[step:, ...],
            join(x[: rows - step, ...], x[step:, ...]),
        )
        x = concat(xp, [x[:step, ...], new], 0)
        starts = concat(xp, [starts[:step], starts[step:] | starts[: rows - step]], 0)
        step *= 2
    last = xp.maximum(offsets[1:] - 1, xp.zeros_like(offsets[1:]))
    results = xp.take(x, last, axis=0)
    is_not_empty = xp.reshape(offsets[1:] > offsets[:-1], (runs, *dims[1:]))
    return xp.where(is_not_empty, results, xp.zeros_like(results))
