"""isfinite, isinf, isnan of a whole tensor: block by block where reading an answer costs nothing."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .blocks import blocks
from .common import immediate, is_half


def _answer(call: Call, context: Context, name: str) -> Any:
    """``all(isfinite(X))``, else ``any(isinf(X))`` or ``any(isnan(X))``."""
    xp, wanted = context.xp, name == "isfinite"
    function, half = getattr(xp, name), is_half(call.dtype("X"))
    if "float" not in call.dtype("X"):
        return lambda context, io: _put(io, wanted)

    def stops(array: Any) -> Any:
        """Whether a block decides."""
        if half:
            array = xp.astype(array, xp.float32)
        found = function(array)
        return not xp.all(found) if wanted else xp.any(found)

    if immediate(context):
        return lambda context, io: _put(io, any(map(stops, blocks(io.array("X")))) != wanted)

    def run(context: Context, io: IO) -> None:
        x = io.array("X")
        found = function(xp.astype(x, xp.float32) if half else x)
        io.array("Out")[...] = xp.reshape(xp.all(found) if wanted else xp.any(found), (1,))

    return run


def _put(io: IO, answer: bool) -> None:
    io.array("Out")[...] = answer


@register_kernel("isfinite", "array")
def isfinite(call: Call, context: Context) -> Any:
    """Out = no element is infinite or NaN."""
    return _answer(call, context, "isfinite")


@register_kernel("isinf", "array")
def isinf(call: Call, context: Context) -> Any:
    """Out = an element is infinite."""
    return _answer(call, context, "isinf")


@register_kernel("isnan", "array")
def isnan(call: Call, context: Context) -> Any:
    """Out = an element is NaN."""
    return _answer(call, context, "isnan")
