"""unpool. An index that is out of range is recorded in the status word and skipped."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE
from fluidlite.plugin import IO, Call, Context, KernelOptions, register_kernel

from .source import COPY_DTYPES, PER_ITEM, STATUS, Buffer, build

# A work-item computes one plane: of several elements with one index, the last remains.
_UNPOOL = """
  for (index_t i = 0; i < size; ++i) out[gid * size + i] = 0;
  for (index_t i = 0; i < count; ++i) {
    const index_t at = places[gid * count + i];
    if (at >= 0 && at < size) out[gid * size + at] = x[gid * count + i];
    else bad_index(status, op_id, at, size);
  }
"""


@register_kernel("unpool", "language", options=KernelOptions(indexes=True))
def unpool(call: Call, context: Context) -> Any:
    """Out = 0, and X at the positions in Indices, in each plane."""
    dims, dtype = call.dims("X"), COPY_DTYPES[ITEMSIZE[call.dtype("X")]]
    planes, count, size = dims[0] * dims[1], prod(dims[2:]), prod(call.dims("Out")[2:])
    kernel = build(
        context,
        f"unpool_{dtype}",
        [Buffer("x", dtype), Buffer("places", call.dtype("Indices")), Buffer("out", dtype, True), STATUS],
        ["size", "count", "op_id"],
        _UNPOOL,
    )

    def run(context: Context, io: IO) -> None:
        spans = (io.span("X"), io.span("Indices"), io.span("Out"), context.status_span())
        kernel(context, planes, spans, (size, count, io.op_id), PER_ITEM)

    return run
