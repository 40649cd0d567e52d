"""assign_value and fill: they copy attributes to the output."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.kernel_support import is_float
from fluidlite.plugin import IO, Call, Context, numpy_dtype, register_kernel


@register_kernel("assign_value", "memory")
def assign_value(call: Call, context: Context) -> Any:
    """Copy the attribute's values to Out."""
    dtype = call.attr("dtype")
    names = ("fp32_values", "int32_values", "int64_values", "bool_values")
    values = next((call.attr(name) for name in names if call.attr(name)), ())
    return _constant_kernel(np.asarray(values, "float64" if is_float(dtype) else None), dtype)


@register_kernel("fill", "memory")
def fill(call: Call, context: Context) -> Any:
    """Copy the attribute's values to Out; the dtype can represent them."""
    return _constant_kernel(np.asarray(call.attr("value"), "float64"), call.attr("dtype"))


def _constant_kernel(values: Any, dtype: str) -> Any:
    with np.errstate(over="ignore"):  # out of a half type's range: infinity
        content = memoryview(values.astype(numpy_dtype(dtype)).tobytes())

    def run(context: Context, io: IO) -> None:
        context.copy_in(io.span("Out"), content)

    return run
