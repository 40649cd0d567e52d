"""set_rows: replaces rows of a variable in place."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, register_kernel


@register_kernel("set_rows", "array", options=KernelOptions(indexes=True))
def set_rows(call: Call, context: Context) -> Any:
    """Out[Rows[i]] = Values[i]; all indices are checked before a row is written."""
    height, count = call.dims("X")[0], call.dims("Rows")[0]

    def run(context: Context, io: IO) -> None:
        rows = context.check_index(io.array("Rows"), height, io) if count else None
        out, values = io.array("Out"), io.array("Values")
        out_span, x_span = io.span("Out"), io.span("X")
        if out_span.handle is not x_span.handle or out_span.offset != x_span.offset:  # X was fed: Out is other memory
            out[...] = io.array("X")
        if rows is None:
            return
        if context.array.extra("scatter_add") is None:
            for i in range(count):  # the Array-API standard has no assignment by an array of indices
                out[int(rows[i]), ...] = values[i, ...]
        else:
            out[rows, ...] = values

    return run
