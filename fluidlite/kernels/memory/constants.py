"""shape, size, is_empty, assign_value and fill: they copy numbers that metadata and attributes give to the output."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.kernel_support import is_float
from fluidlite.plugin import IO, Call, Context, numpy_dtype, register_kernel


def _constant_kernel(call: Call, context: Context) -> Any:
    """Copy the constant that the operator's definition computes."""
    constant = call.op.constant
    assert constant is not None
    return _copy_of(constant(call)["Out"], call.dtype("Out"))


def _copy_of(values: Any, dtype: str) -> Any:
    with np.errstate(over="ignore"):  # out of a half type's range: infinity
        numbers = np.asarray(values, "float64" if is_float(dtype) else None).astype(numpy_dtype(dtype))
    content = memoryview(numbers.tobytes())

    def run(context: Context, io: IO) -> None:
        context.copy_in(io.span("Out"), content)

    return run


@register_kernel("fill", "memory")
def fill(call: Call, context: Context) -> Any:
    """Copy the attribute's values to Out; the dtype can represent them."""
    return _copy_of(call.attr("value"), call.dtype("Out"))


shape = register_kernel("shape", "memory")(_constant_kernel)
size = register_kernel("size", "memory")(_constant_kernel)
is_empty = register_kernel("is_empty", "memory")(_constant_kernel)
assign_value = register_kernel("assign_value", "memory")(_constant_kernel)
