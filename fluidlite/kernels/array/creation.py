"""fill_constant and fill_constant_batch_size_like."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel


def _fill(call: Call, context: Context) -> Any:
    value, dtype = call.attr("value"), call.dtype("Out")
    if dtype == "bool":
        value = bool(value)
    elif "int" in dtype:
        value = int(value)

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = value

    return run


@register_kernel("fill_constant", "array")
def fill_constant(call: Call, context: Context) -> Any:
    """Out = value, converted to the dtype."""
    return _fill(call, context)


@register_kernel("fill_constant_batch_size_like", "array")
def fill_constant_batch_size_like(call: Call, context: Context) -> Any:
    """Out = value; its dims come from the definition."""
    return _fill(call, context)
