"""unpool and its gradient. An index out of range is recorded in the status word and passed over."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, register_kernel

from .source import HEAVY, MOVED, Buffer, build, dealt

_STATUS = Buffer("status", "int64", True)

# A plane an item: the last of several elements for one place stays.
_UNPOOL = """
  for (index_t i = 0; i < size; ++i) out[gid * size + i] = 0;
  for (index_t i = 0; i < count; ++i) {
    const index_t at = places[gid * count + i];
    if (at >= 0 && at < size) out[gid * size + at] = x[gid * count + i];
    else bad_index(status, op_id, at, size);
  }
"""

_GRAD = """
  const index_t at = places[gid];
  const int inside = at >= 0 && at < size;
  if (!inside) bad_index(status, op_id, at, size);
  dx[gid] = inside ? dout[gid / count * size + at] : 0;
"""


@register_kernel("unpool", "dialect", indexes=True)
def unpool(call: Call, context: Context) -> Any:
    """Out = 0, and X at the places that Indices name in each plane."""
    dims, moved = call.dims("X"), MOVED[ITEMSIZE[call.dtype("X")]]
    planes, count, size = dims[0] * dims[1], prod(dims[2:]), prod(call.dims("Out")[2:])
    kernel = build(
        context, f"unpool_{moved}",
        [Buffer("x", moved), Buffer("places", call.dtype("Indices")), Buffer("out", moved, True), _STATUS],
        ["size", "count", "op_id"], _UNPOOL,
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        spans = (io.span("X"), io.span("Indices"), io.span("Out"), context.status_span())
        kernel(context, planes, spans, (size, count, io.op_id), HEAVY)

    return run


@register_kernel("unpool_grad", "dialect", indexes=True)
def unpool_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD at the places that Indices name in each plane."""
    dims, moved = call.dims("X@GRAD"), MOVED[ITEMSIZE[call.dtype("Out@GRAD")]]
    count, size, items = prod(dims[2:]), prod(call.dims("Out@GRAD")[2:]), prod(dims)
    kernel = build(
        context, f"unpool_grad_{moved}",
        [Buffer("dout", moved), Buffer("places", call.dtype("Indices")), Buffer("dx", moved, True), _STATUS],
        ["size", "count", "op_id"], _GRAD,
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        spans = (io.span("Out@GRAD"), io.span("Indices"), io.span("X@GRAD"), context.status_span())
        kernel(context, items, spans, (size, count, io.op_id), dealt(items))

    return run
