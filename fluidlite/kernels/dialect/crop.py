"""crop and crop_tensor, with gradients."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import Call, Context, register_kernel

from .boxes import cut, paste


@register_kernel("crop", "dialect")
def crop(call: Call, context: Context) -> Any:
    """Out = the part of X of Out's dims that begins at the offsets."""
    return cut(call, context)


@register_kernel("crop_grad", "dialect")
def crop_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD in that part, 0 elsewhere."""
    return paste(call, context)


@register_kernel("crop_tensor", "dialect")
def crop_tensor(call: Call, context: Context) -> Any:
    """As crop."""
    return cut(call, context)


@register_kernel("crop_tensor_grad", "dialect")
def crop_tensor_grad(call: Call, context: Context) -> Any:
    """As crop_grad."""
    return paste(call, context)
