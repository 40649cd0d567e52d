"""slice and strided_slice, with gradients."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import Call, Context, register_kernel

from .boxes import cut, paste


@register_kernel("slice", "array")
def slice_(call: Call, context: Context) -> Any:
    """Out = Input[starts:ends] along ``axes``, without the axes in ``decrease_axis``."""
    return cut(call, context)


@register_kernel("slice_grad", "array")
def slice_grad(call: Call, context: Context) -> Any:
    """Input@GRAD = Out@GRAD in the window, 0 elsewhere."""
    return paste(call, context)


@register_kernel("strided_slice", "array")
def strided_slice(call: Call, context: Context) -> Any:
    """Out = Input[starts:ends:strides] along ``axes``."""
    return cut(call, context)


@register_kernel("strided_slice_grad", "array")
def strided_slice_grad(call: Call, context: Context) -> Any:
    """Input@GRAD = Out@GRAD where Input was kept, 0 elsewhere."""
    return paste(call, context)
