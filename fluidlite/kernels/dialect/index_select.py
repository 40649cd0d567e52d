"""index_select and index_sample with gradients, and shard_index."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .rows import Find, Taker, adder, each_find, plain_find
from .source import Buffer, build


def _along_dim(call: Call, slot: str) -> tuple[Find, int]:
    dims = call.dims(slot)
    axis = call.attr("dim") % len(dims)
    find = plain_find(
        "Index", call.dtype("Index"), dims[axis], prod(call.dims("Index")), groups=prod(dims[:axis])
    )  # fmt: skip
    return find, prod(dims[axis + 1 :])


@register_kernel("index_select", "dialect", indexes=True)
def index_select(call: Call, context: Context) -> Any:
    """Out[..., i, ...] = X[..., Index[i], ...]."""
    find, width = _along_dim(call, "X")
    take = Taker(context, find, call.dtype("X"), width)
    return lambda context, io: take(context, io, io.span("X"), io.span("Out"))


@register_kernel("index_select_grad", "dialect", indexes=True)
def index_select_grad(call: Call, context: Context) -> Any:
    """X@GRAD[..., Index[i], ...] += Out@GRAD[..., i, ...], from zero."""
    find, width = _along_dim(call, "X@GRAD")
    return adder(context, find, call.dtype("X@GRAD"), width, "X@GRAD", "Out@GRAD")


def _by_row(call: Call, slot: str) -> Find:
    rows, count = call.dims("Index")
    return each_find("Index", call.dtype("Index"), (rows, count, 1), call.dims(slot)[1])


@register_kernel("index_sample", "dialect", indexes=True)
def index_sample(call: Call, context: Context) -> Any:
    """Out[i, j] = X[i, Index[i, j]]."""
    take = Taker(context, _by_row(call, "X"), call.dtype("X"), 1)
    return lambda context, io: take(context, io, io.span("X"), io.span("Out"))


@register_kernel("index_sample_grad", "dialect", indexes=True)
def index_sample_grad(call: Call, context: Context) -> Any:
    """X@GRAD[i, Index[i, j]] += Out@GRAD[i, j], from zero."""
    return adder(context, _by_row(call, "X@GRAD"), call.dtype("X@GRAD"), 1, "X@GRAD", "Out@GRAD")


_SHARD = """
  const index_t index = x[gid], here = index - low;
  if (index < 0 || index >= bound) bad_index(status, op_id, index, bound);
  out[gid] = here >= 0 && here < held ? here : ignored;
"""


@register_kernel("shard_index", "dialect", indexes=True)
def shard_index(call: Call, context: Context) -> Any:
    """Out = X, counted from the shard's first, or ``ignore_value``."""
    dtype, bound, size = call.dtype("X"), call.attr("index_num"), prod(call.dims("X"))
    held = -(-bound // call.attr("nshards"))
    numbers = (bound, held, held * call.attr("shard_id"), call.attr("ignore_value"))
    kernel = build(
        context, f"shard_{dtype}", [Buffer("x", dtype), Buffer("out", dtype, True), Buffer("status", "int64", True)],
        ["bound", "held", "low", "ignored", "op_id"], _SHARD,
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        kernel(context, size, (io.span("X"), io.span("Out"), context.status_span()), (*numbers, io.op_id))

    return run
