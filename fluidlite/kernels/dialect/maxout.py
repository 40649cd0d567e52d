"""maxout: the kernels only ask the functors for the implementation of their context."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import Call, Context, maxout_functor, maxout_grad_functor, register_kernel

from . import math as _implementations

__all__ = ["_implementations", "maxout", "maxout_grad"]


@register_kernel("maxout", "dialect")
def maxout(call: Call, context: Context) -> Any:
    """Out = the greatest of each group of channels."""
    return maxout_functor.on(context, "dialect")(context, call)


@register_kernel("maxout_grad", "dialect")
def maxout_grad(call: Call, context: Context) -> Any:
    """The gradient of maxout."""
    return maxout_grad_functor.on(context, "dialect")(context, call)
