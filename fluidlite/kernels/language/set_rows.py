"""set_rows: replaces rows of a variable in place."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE
from fluidlite.plugin import IO, Call, Context, KernelOptions, register_kernel

from .source import COPY_DTYPES, STATUS, Buffer, build, group_size

_CHECK = """
  const index_t row = rows[gid];
  if (row < 0 || row >= height) bad_index(status, op_id, row, height);
"""

# A separate launch: it writes nothing if a row is out of range, or if an earlier kernel set the status word.
_WRITE = """
  if (status[0] == 0) out[rows[gid / width] * width + gid % width] = values[gid];
"""


@register_kernel("set_rows", "language", options=KernelOptions(indexes=True))
def set_rows(call: Call, context: Context) -> Any:
    """Out[Rows[i]] = Values[i]; all indices are checked before a row is written."""
    dims, count = call.dims("X"), call.dims("Rows")[0]
    height, width = dims[0], prod(dims[1:])
    dtype = COPY_DTYPES[ITEMSIZE[call.dtype("X")]]
    check = build(
        context,
        "set_rows_check",
        [Buffer("rows", "int64"), STATUS],
        ["height", "op_id"],
        _CHECK,
    )
    write = build(
        context,
        f"set_rows_{dtype}",
        [Buffer("rows", "int64"), Buffer("values", dtype), Buffer("out", dtype, True), Buffer("status", "int64")],
        ["width"],
        _WRITE,
    )

    def run(context: Context, io: IO) -> None:
        out, x = io.span("Out"), io.span("X")
        if out.handle is not x.handle or out.offset != x.offset:  # X was fed: Out is other memory
            context.copy_within(out, x)
        if not count or not width:
            return
        rows, status = io.span("Rows"), context.status_span()
        check(context, count, (rows, status), (height, io.op_id), group_size(count))
        write(context, count * width, (rows, io.span("Values"), io.span("Out"), status), (width,), 64)

    return run
