"""gather, lookup_table and its second version with gradients, one_hot and its second version.

An index out of range is recorded in the status word, and its row is 0.
"""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .rows import NOWHERE, Taker, adder, plain_find
from .source import Buffer, build, dealt, store

NO_PADDING = -1


def _take(call: Call, context: Context, x: str, index: str, padding: int = NOWHERE) -> Any:
    dims = call.dims(x)
    find = plain_find(index, call.dtype(index), dims[0], prod(call.dims(index)), padding)
    take = Taker(context, find, call.dtype(x), prod(dims[1:]))
    return lambda context, io: take(context, io, io.span(x), io.span("Out"))


def _add(call: Call, context: Context, slot: str, index: str, padding: int = NOWHERE) -> Any:
    dims = call.dims(slot)
    find = plain_find(index, call.dtype(index), dims[0], prod(call.dims(index)), padding)
    return adder(context, find, call.dtype(slot), prod(dims[1:]), slot, "Out@GRAD")


def _padding(call: Call) -> int:
    padding: int = call.attr("padding_idx")
    return NOWHERE if padding == NO_PADDING else padding


@register_kernel("gather", "dialect", indexes=True)
def gather(call: Call, context: Context) -> Any:
    """Out[i] = X[Index[i]]."""
    return _take(call, context, "X", "Index")


@register_kernel("gather_grad", "dialect", indexes=True)
def gather_grad(call: Call, context: Context) -> Any:
    """X@GRAD[Index[i]] += Out@GRAD[i], from zero."""
    return _add(call, context, "X@GRAD", "Index")


@register_kernel("lookup_table", "dialect", indexes=True)
def lookup_table(call: Call, context: Context) -> Any:
    """Out[..., :] = W[Ids[..., 0]], zero where the id is ``padding_idx``."""
    return _take(call, context, "W", "Ids", _padding(call))


@register_kernel("lookup_table_v2", "dialect", indexes=True)
def lookup_table_v2(call: Call, context: Context) -> Any:
    """Out[..., :] = W[Ids[...]], zero where the id is ``padding_idx``."""
    return _take(call, context, "W", "Ids", _padding(call))


@register_kernel("lookup_table_grad", "dialect", indexes=True)
def lookup_table_grad(call: Call, context: Context) -> Any:
    """W@GRAD[Ids[i]] += Out@GRAD[i], from zero, without the rows of ``padding_idx``."""
    return _add(call, context, "W@GRAD", "Ids", _padding(call))


@register_kernel("lookup_table_v2_grad", "dialect", indexes=True)
def lookup_table_v2_grad(call: Call, context: Context) -> Any:
    """W@GRAD[Ids[i]] += Out@GRAD[i], from zero, without the rows of ``padding_idx``."""
    return _add(call, context, "W@GRAD", "Ids", _padding(call))


_ONE_HOT = """
  const index_t chosen = x[gid];
  if (!loose && (chosen < 0 || chosen >= depth)) bad_index(status, op_id, chosen, depth);
  for (index_t j = 0; j < depth; ++j) { $store }
"""


def _one_hot(call: Call, context: Context) -> Any:
    dtype, depth, rows = call.dtype("Out"), call.dims("Out")[-1], prod(call.dims("X"))
    kernel = build(
        context, f"one_hot_{dtype}",
        [Buffer("x", call.dtype("X")), Buffer("out", dtype, True), Buffer("status", "int64", True)],
        ["depth", "loose", "op_id"], _ONE_HOT,
        {"store": store(context, dtype, "out[gid * depth + j]", "j == chosen ? 1 : 0")},
    )  # fmt: skip
    loose = int(call.attr("allow_out_of_range"))

    def run(context: Context, io: IO) -> None:
        spans = (io.span("X"), io.span("Out"), context.status_span())
        kernel(context, rows, spans, (depth, loose, io.op_id), dealt(rows))

    return run


@register_kernel("one_hot", "dialect", indexes=True)
def one_hot(call: Call, context: Context) -> Any:
    """Out[..., X[..., 0]] = 1, the rest 0."""
    return _one_hot(call, context)


@register_kernel("one_hot_v2", "dialect", indexes=True)
def one_hot_v2(call: Call, context: Context) -> Any:
    """Out[..., X[...]] = 1, the rest 0."""
    return _one_hot(call, context)
