"""l1_norm, squared_l2_norm and clip_by_norm; on the host in blocks, so that nothing as large as X is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .blocks import BLOCK, blocks
from .common import immediate, is_half, storer, widener


def _sum_of_sizes(call: Call, context: Context) -> Callable[[Any], Any]:
    xp, half = context.xp, is_half(call.dtype("X"))
    if not immediate(context):
        widen = widener(call.dtype("X"), context)
        return lambda x: xp.sum(xp.abs(widen(x)))

    def total(x: Any) -> float:
        buffer = xp.empty(min(BLOCK, x.size), xp.float32 if half else x.dtype)
        parts = 0.0
        for block in blocks(x):
            into = buffer[: block.size]
            if half:
                into[...] = block
                block = into
            parts += float(xp.abs(block, into).sum())
        return parts

    return total


def _sum_of_squares(call: Call, context: Context) -> Callable[[Any], Any]:
    xp, half = context.xp, is_half(call.dtype("X"))
    if not immediate(context):
        widen = widener(call.dtype("X"), context)

        def summed(x: Any) -> Any:
            x = widen(x)
            return xp.sum(x * x)

        return summed

    def total(x: Any) -> float:
        parts = 0.0
        for block in blocks(x):
            wide = block.astype(xp.float32) if half else block
            parts += float(wide.dot(wide))
        return parts

    return total


def _norm(total: Callable[[Any], Any], context: Context) -> Any:
    if immediate(context):

        def run_into(context: Context, io: IO) -> None:
            io.array("Out")[0] = total(io.array("X"))

        return run_into
    store = storer(context)
    return lambda context, io: store(io.array("Out"), total(io.array("X")))


@register_kernel("l1_norm", "array")
def l1_norm(call: Call, context: Context) -> Any:
    """Out = the sum of |X|."""
    return _norm(_sum_of_sizes(call, context), context)


@register_kernel("squared_l2_norm", "array")
def squared_l2_norm(call: Call, context: Context) -> Any:
    """Out = the sum of X X."""
    return _norm(_sum_of_squares(call, context), context)


@register_kernel("clip_by_norm", "array", inplace=True)
def clip_by_norm(call: Call, context: Context) -> Any:
    """Out = X, times max_norm / norm(X) if that is below 1."""
    xp, most, total = context.xp, call.attr("max_norm"), _sum_of_squares(call, context)
    widen, store, half = widener(call.dtype("X"), context), storer(context), is_half(call.dtype("X"))
    if immediate(context) and not half:

        def run_into(context: Context, io: IO) -> None:
            x, out = io.array("X"), io.array("Out")
            norm = total(x) ** 0.5
            if norm <= most:
                out[...] = x
            else:
                xp.multiply(x, most / norm, out)

        return run_into

    def run(context: Context, io: IO) -> None:
        x = io.array("X")
        norm = xp.sqrt(xp.asarray(total(x), dtype=xp.float64 if "64" in call.dtype("X") else xp.float32))
        factor = xp.where(norm > most, most / norm, xp.ones_like(norm))
        store(io.array("Out"), widen(x) * factor)

    return run
