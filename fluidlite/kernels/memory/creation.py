"""assign_value: the bytes are attributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.plugin import IO, Call, Context, is_float, numpy_dtype, register_kernel


@register_kernel("assign_value", "memory")
def assign_value(call: Call, context: Context) -> Any:
    """Copy the values in."""
    dtype = call.attr("dtype")
    values = call.attr("fp32_values" if is_float(dtype) else "int32_values")
    with np.errstate(over="ignore"):  # beyond a half type's range: infinity
        content = memoryview(
            np.asarray(values, "float64" if is_float(dtype) else None).astype(numpy_dtype(dtype)).tobytes()
        )

    def run(context: Context, io: IO) -> None:
        context.copy_in(io.span("Out"), content)

    return run
