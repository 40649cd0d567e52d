"""fill_constant and fill_constant_batch_size_like."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import Call, Context, register_kernel

from .strided import filler


def _fill(call: Call, context: Context) -> Any:
    value, dtype = call.attr("value"), call.dtype("Out")
    fill, size = filler(context, dtype, bool(value) if dtype == "bool" else value), prod(call.dims("Out"))
    return lambda context, io: fill(context, io.span("Out"), size)


@register_kernel("fill_constant", "dialect")
def fill_constant(call: Call, context: Context) -> Any:
    """Out = value, converted to the dtype."""
    return _fill(call, context)


@register_kernel("fill_constant_batch_size_like", "dialect")
def fill_constant_batch_size_like(call: Call, context: Context) -> Any:
    """Out = value; its dims come from the definition."""
    return _fill(call, context)
