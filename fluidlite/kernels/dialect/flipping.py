"""reverse, flip, roll and tril_triu. Their gradients are the same movements."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, register_kernel

from .source import MOVED, Buffer, build, dealt, part
from .strided import mover, steps_of


def _flip(call: Call, context: Context, axes: tuple[int, ...]) -> Any:
    """A move whose source runs backwards along the axes."""
    dims, dtype = call.dims("X"), call.dtype("X")
    turned, own = {axis % len(dims) for axis in axes}, steps_of(dims)
    steps = [-step if axis in turned else step for axis, step in enumerate(own)]
    start = sum((dims[axis] - 1) * own[axis] for axis in turned) * ITEMSIZE[dtype]
    move = mover(context, dtype, dtype, dims, steps, own)
    return lambda context, io: move(context, part(io.span("X"), start), io.span("Out"))


@register_kernel("reverse", "dialect")
def reverse(call: Call, context: Context) -> Any:
    """Out = X, the dims in ``axis`` in reverse order."""
    return _flip(call, context, call.attr("axis"))


@register_kernel("flip", "dialect")
def flip(call: Call, context: Context) -> Any:
    """Out = X, the dims in ``dims`` in reverse order."""
    return _flip(call, context, call.attr("dims"))


@register_kernel("roll", "dialect")
def roll(call: Call, context: Context) -> Any:
    """Out = X, each of ``dims`` rolled: every corner of it moves to the opposite one."""
    dtype, dims, shifts = call.dtype("X"), call.attr("dims"), call.attr("shifts")
    shape = (prod(call.dims("X")),) if shifts and not dims else call.dims("X")
    steps, by = steps_of(shape), [0] * len(shape)
    for axis, shift in zip(dims or (0,), shifts, strict=False):
        by[axis] = (by[axis] + shift) % shape[axis]
    halves = [[(0, s, n - s), (n - s, 0, s)] if s else [(0, 0, n)] for n, s in zip(shape, by, strict=True)]
    moves = []
    for corner in product(*halves):
        sizes = [size for _, _, size in corner]
        source = sum(start * step for (start, _, _), step in zip(corner, steps, strict=True)) * ITEMSIZE[dtype]
        target = sum(start * step for (_, start, _), step in zip(corner, steps, strict=True)) * ITEMSIZE[dtype]
        moves.append((source, target, mover(context, dtype, dtype, sizes, steps, steps)))

    def run(context: Context, io: IO) -> None:
        x, out = io.span("X"), io.span("Out")
        for source, target, move in moves:
            move(context, part(x, source), part(out, target))

    return run


_TRIANGLE = """
  const index_t row = gid - gid / rows * rows, edge = row + diagonal + (lower ? 1 : 0);
  const index_t cut = edge < 0 ? 0 : edge > columns ? columns : edge, at = gid * columns;
  if (lower) {
    for (index_t j = 0; j < cut; ++j) out[at + j] = x[at + j];
    for (index_t j = cut; j < columns; ++j) out[at + j] = 0;
  } else {
    for (index_t j = 0; j < cut; ++j) out[at + j] = 0;
    for (index_t j = cut; j < columns; ++j) out[at + j] = x[at + j];
  }
"""


@register_kernel("tril_triu", "dialect")
def tril_triu(call: Call, context: Context) -> Any:
    """Out = X on one side of a diagonal, else 0. An item copies a row."""
    dims, moved = call.dims("X"), MOVED[ITEMSIZE[call.dtype("X")]]
    kernel = build(
        context, f"triangle_{moved}", [Buffer("x", moved), Buffer("out", moved, True)],
        ["rows", "columns", "diagonal", "lower"], _TRIANGLE,
    )  # fmt: skip
    items = prod(dims[:-1])
    most = dims[-2] + dims[-1]
    diagonal = max(-most, min(most, call.attr("diagonal")))
    numbers = (dims[-2], dims[-1], diagonal, int(call.attr("lower")))

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span("X"), io.span("Out")), numbers, dealt(items))

    return run
