"""index_select and index_sample with gradients, and shard_index."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate, is_half
from .rows import each_find, matrix, plain_find, row_adder, take_rows

BLOCK = 65536
"""Elements that are worked on at a time, on the host."""


@register_kernel("index_select", "array", indexes=True)
def index_select(call: Call, context: Context) -> Any:
    """Out[..., i, ...] = X[..., Index[i], ...]."""
    dims, fast = call.dims("X"), immediate(context)
    axis = call.attr("dim") % len(dims)
    find = plain_find(call, "Index", dims[axis])

    def run(context: Context, io: IO) -> None:
        x, index, out = io.array("X"), find(context, io), io.array("Out")
        if fast:
            context.xp.take(x, index, axis, out, "clip")
        else:
            out[...] = context.xp.take(x, index, axis=axis)

    return run


@register_kernel("index_select_grad", "array", indexes=True)
def index_select_grad(call: Call, context: Context) -> Any:
    """X@GRAD[..., Index[i], ...] += Out@GRAD[..., i, ...], from zero."""
    dims, dtype = call.dims("X@GRAD"), call.dtype("X@GRAD")
    axis = call.attr("dim") % len(dims)
    outer, bound, inner = prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])
    count = call.dims("Index")[0]
    find = plain_find(call, "Index", bound)
    add = row_adder((outer * bound, inner), dtype, context)

    def run(context: Context, io: IO) -> None:
        xp, index = context.xp, find(context, io)
        if outer > 1:
            starts = xp.arange(outer, dtype=xp.int64)[:, None] * bound
            index = xp.reshape(starts + xp.astype(index, xp.int64), (-1,))
        add(io.array("X@GRAD"), index, io.array("Out@GRAD"))

    def run_in_blocks(context: Context, io: IO) -> None:
        xp, grad, dout = context.xp, io.array("X@GRAD"), io.array("Out@GRAD")
        starts = xp.arange(min(step, outer), dtype=xp.int64)[:, None] * bound
        index = (starts + find(context, io)).reshape(-1)  # the same for each block
        width = () if inner == 1 else (inner,)  # NumPy's flat path is faster
        grad, dout = grad.reshape(-1, *width), dout.reshape(-1, *width)
        grad[...] = 0
        for at in range(0, outer, step):
            part = dout[at * count : (at + step) * count]
            scatter_add(grad[at * bound : (at + step) * bound], index[: len(part)], part)

    def run_by_columns(context: Context, io: IO) -> None:
        index, grad = find(context, io), io.array("X@GRAD").reshape(outer, bound, inner)
        dout = io.array("Out@GRAD").reshape(outer, count, inner)
        grad[...] = 0
        for i, target in enumerate(index.tolist()):
            grad[:, target] += dout[:, i]

    step = max(1, BLOCK // max(bound, count, 1))
    scatter_add = context.array.extra("scatter_add")
    if not immediate(context) or is_half(dtype) or scatter_add is None or outer == 1:
        return run
    # a slice for each index, where those are few beside what each takes along: no index for each element then
    return run_by_columns if 1 < count < outer else run_in_blocks


def _each(call: Call, x: str) -> tuple[tuple[int, int, int], int]:
    """Index as [rows, count, 1], and how many columns the rows have."""
    rows, count = call.dims("Index")
    return (rows, count, 1), call.dims(x)[1]


@register_kernel("index_sample", "array", indexes=True)
def index_sample(call: Call, context: Context) -> Any:
    """Out[i, j] = X[i, Index[i, j]]."""
    find, fast = each_find(call, "Index", *_each(call, "X")), immediate(context)

    def run(context: Context, io: IO) -> None:
        x = context.xp.reshape(io.array("X"), (-1,))
        take_rows(context.xp, x, find(context, io), io.array("Out"), fast)

    return run


@register_kernel("index_sample_grad", "array", indexes=True)
def index_sample_grad(call: Call, context: Context) -> Any:
    """X@GRAD[i, Index[i, j]] += Out@GRAD[i, j], from zero."""
    find = each_find(call, "Index", *_each(call, "X@GRAD"))
    add = row_adder(matrix(call, "X@GRAD", 1), call.dtype("X@GRAD"), context)
    return lambda context, io: add(io.array("X@GRAD"), find(context, io), io.array("Out@GRAD"))


@register_kernel("shard_index", "array", indexes=True)
def shard_index(call: Call, context: Context) -> Any:
    """Out = X, counted from the shard's first, or ``ignore_value``."""
    xp, bound, ignored = context.xp, call.attr("index_num"), call.attr("ignore_value")
    held = -(-bound // call.attr("nshards"))
    low = held * call.attr("shard_id")

    def run_host(context: Context, io: IO) -> None:
        x, out = context.check_index(io.array("X"), bound, io).reshape(-1), io.array("Out").reshape(-1)
        for at in range(0, out.size, BLOCK):
            part = out[at : at + BLOCK]
            xp.subtract(x[at : at + BLOCK], low, out=part)
            xp.copyto(part, ignored, where=(part < 0) | (part >= held))

    def run(context: Context, io: IO) -> None:
        x = context.check_index(io.array("X"), bound, io) - low
        io.array("Out")[...] = xp.where((x >= 0) & (x < held), x, xp.full_like(x, ignored))

    return run_host if immediate(context) else run
