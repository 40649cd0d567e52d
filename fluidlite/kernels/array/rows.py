"""Rows of a matrix that indices name: reading them, adding to them, and finding which write came last.

Kernels of tensors see them as matrices [rows, width]; what differs is how an entry of the index finds its row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context

from .common import immediate, is_half

Find = Callable[[Context, IO], Any]
"""``find(context, io)`` returns the row of each entry, flat, in int64, checked."""


def take_rows(xp: Any, x: Any, rows: Any, out: Any, fast: bool) -> None:
    """Write the rows of ``x`` to ``out``; NumPy's take skips its buffer when the (checked) rows may be clipped."""
    dims = (prod(rows.shape), *x.shape[1:])
    if fast:
        xp.take(x, rows, 0, out.reshape(dims), "clip")
    else:
        out[...] = xp.reshape(xp.take(x, rows, axis=0), out.shape)


def matrix(call: Call, slot: str, width: int) -> tuple[int, ...]:
    """Dims of a slot as (rows, width); without the width where it is 1, for NumPy's flat paths are faster."""
    rows = prod(call.dims(slot)) // width if width else 0
    return (rows,) if width == 1 else (rows, width)


def plain_find(call: Call, slot: str, bound: int) -> Find:
    """An index in ``slot`` is a row."""

    def find(context: Context, io: IO) -> Any:
        return context.check_index(context.xp.reshape(io.array(slot), (-1,)), bound, io)

    return find


def nd_find(call: Call, slot: str, dims: tuple[int, ...]) -> Find:
    """The last axis of ``slot`` holds an index for each of ``dims``."""
    count = prod(call.dims(slot)[:-1])

    def find(context: Context, io: IO) -> Any:
        xp = context.xp
        index = xp.reshape(io.array(slot), (count, len(dims)))
        if not dims:
            return xp.zeros((count,), dtype=xp.int64)
        rows = xp.astype(context.check_index(index[:, 0], dims[0], io), xp.int64)
        for axis, size in enumerate(dims[1:], 1):
            rows *= size
            rows += xp.astype(context.check_index(index[:, axis], size, io), rows.dtype)
        return rows

    return find


def each_find(call: Call, slot: str, dims: tuple[int, int, int], bound: int) -> Find:
    """``slot`` is [outer, count, inner] of indices along the middle axis of [outer, ``bound``, inner]."""
    outer, _, inner = dims

    def find(context: Context, io: IO) -> Any:
        xp = context.xp
        rows = context.check_index(xp.reshape(io.array(slot), dims), bound, io)
        starts = xp.reshape(xp.arange(outer, dtype=xp.int64) * (bound * inner), (outer, 1, 1))
        if inner > 1:
            rows = xp.astype(rows, xp.int64) * inner
            starts = starts + xp.arange(inner, dtype=xp.int64)
        return xp.reshape(xp.astype(rows, xp.int64, copy=False) + starts, (-1,))

    return find


def row_adder(dims: tuple[int, ...], dtype: str, context: Context) -> Callable[..., None]:
    """Return ``add(target, rows, values, start=None)``: target becomes ``start`` (or zero) plus values at their rows.

    ``start`` may be the target itself. ``dims`` are the target's, as :func:`matrix` gives them. Half types add in
    float32.
    """
    xp, half = context.xp, is_half(dtype)
    scatter_add = context.array.extra("scatter_add")

    def add(target: Any, rows: Any, values: Any, start: Any = None) -> None:
        begun = start is target
        target, values = _view(xp, target, dims), xp.reshape(values, (rows.shape[0], *dims[1:]))
        if half:
            values = xp.astype(values, xp.float32)
        if scatter_add is None:  # the standard leaves a product with the one-hot matrix
            chosen = xp.astype(xp.arange(dims[0], dtype=rows.dtype)[:, None] == rows[None, :], values.dtype)
            value = xp.reshape(xp.matmul(chosen, xp.reshape(values, (rows.shape[0], prod(dims[1:])))), dims)
            if start is not None:
                value = value + xp.astype(xp.reshape(start, dims), value.dtype)
            target[...] = xp.astype(value, target.dtype)
            return
        sums = xp.empty(dims, dtype=xp.float32) if half else target
        if start is None:
            sums[...] = 0
        elif not begun or half:
            sums[...] = xp.astype(xp.reshape(start, dims), sums.dtype, copy=False)
        scatter_add(sums, rows, values)
        if half:
            target[...] = xp.astype(sums, target.dtype)

    return add


def _view(xp: Any, array: Any, dims: tuple[int, ...]) -> Any:
    """The array under other dims; a write to it is one to the array, which is contiguous."""
    return array if array.shape == dims else xp.reshape(array, dims, copy=False)


def last_writers(context: Context, rows: Any, bound: int) -> tuple[Any, Any]:
    """Return, for each row, which entry names it last, and whether any does."""
    xp = context.xp
    if immediate(context):
        last = xp.full(bound, -1, xp.int32)
        last[rows] = xp.arange(rows.shape[0], dtype=xp.int32)  # in order, so the last one stays
        return last, last >= 0
    if not rows.shape[0]:
        return xp.zeros((bound,), dtype=xp.int64), xp.zeros((bound,), dtype=xp.bool)
    order = stable_argsort(xp)(rows)
    found = xp.take(rows, order, axis=0)
    each = xp.arange(bound, dtype=rows.dtype)
    place = xp.clip(xp.searchsorted(found, each, side="right") - 1, 0, rows.shape[0] - 1)
    return xp.take(order, place, axis=0), xp.take(found, place, axis=0) == each


def stable_argsort(xp: Any) -> Callable[..., Any]:
    """The namespace's argsort, stable. The standard's takes ``stable``; CuPy's does not, and is always so."""
    if "stable" in inspect.signature(xp.argsort).parameters:
        return lambda x: xp.argsort(x, axis=-1, stable=True)
    return lambda x: xp.argsort(x, axis=-1)
