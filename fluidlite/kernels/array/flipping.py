"""reverse, flip, roll and tril_triu. Their gradients are the same movements."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import numpy_style


def _flip(call: Call, context: Context, axes: tuple[int, ...]) -> Any:
    flip, rank = context.xp.flip, len(call.dims("X"))
    turned = tuple(sorted({axis % rank for axis in axes}))

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = flip(io.array("X"), axis=turned)

    return run


@register_kernel("reverse", "array")
def reverse(call: Call, context: Context) -> Any:
    """Out = X, the dims in ``axis`` in reverse order."""
    return _flip(call, context, call.attr("axis"))


@register_kernel("flip", "array")
def flip(call: Call, context: Context) -> Any:
    """Out = X, the dims in ``dims`` in reverse order."""
    return _flip(call, context, call.attr("dims"))


@register_kernel("roll", "array")
def roll(call: Call, context: Context) -> Any:
    """Out = X, each of ``dims`` rolled: every corner of it moves to the opposite one."""
    xp, shape = context.xp, call.dims("X")
    dims, shifts = call.attr("dims"), call.attr("shifts")
    flat = (prod(shape),) if shifts and not dims else shape
    by = [0] * len(flat)
    for axis, shift in zip(dims or (0,), shifts, strict=False):
        by[axis] = (by[axis] + shift) % flat[axis]
    cuts = [[(slice(0, n - s), slice(s, n)), (slice(n - s, n), slice(0, s))] if s else [(slice(None), slice(None))]
            for n, s in zip(flat, by, strict=True)]  # fmt: skip
    corners = [tuple(zip(*corner, strict=True)) or ((), ()) for corner in product(*cuts)]

    def run(context: Context, io: IO) -> None:
        x, out = xp.reshape(io.array("X"), flat), io.array("Out")
        target = out if flat == shape else out.reshape(flat)
        for source, place in corners:
            target[place] = x[source]

    if flat == shape or numpy_style(context):
        return run

    def run_flat(context: Context, io: IO) -> None:
        io.array("Out")[...] = xp.roll(io.array("X"), by[0])

    return run_flat


_ROWS = 64
"""Rows that are cut at the diagonal together."""


@register_kernel("tril_triu", "array")
def tril_triu(call: Call, context: Context) -> Any:
    """Out = X on one side of a diagonal, else 0."""
    xp, (rows, columns) = context.xp, call.dims("X")[-2:]
    diagonal, lower, numpy = call.attr("diagonal"), call.attr("lower"), numpy_style(context)

    def kept(first: int, last: int, left: int, right: int) -> Any:
        """Whether elements of these rows and columns are kept."""
        edge = xp.arange(first, last)[:, None] + diagonal
        here = xp.arange(left, right)[None, :]
        return here <= edge if lower else here >= edge

    def run(context: Context, io: IO) -> None:
        x, out = io.array("X"), io.array("Out")
        out[...] = xp.where(kept(0, rows, 0, columns), x, xp.zeros_like(x))

    def run_rows(context: Context, io: IO) -> None:
        x, out = io.array("X"), io.array("Out")
        for first in range(0, rows, _ROWS):
            last = min(first + _ROWS, rows)
            # left of it all rows are alike, and so they are right of it
            left, right = (min(max(edge + diagonal, 0), columns) for edge in (first, last))
            here = (..., slice(first, last))
            keep, drop = (slice(0, left), slice(right, columns)) if lower else (slice(right, columns), slice(0, left))
            out[(*here, keep)] = x[(*here, keep)]
            out[(*here, drop)] = 0
            band = (*here, slice(left, right))
            out[band] = 0
            xp.copyto(out[band], x[band], where=kept(first, last, left, right))

    return run_rows if numpy else run
