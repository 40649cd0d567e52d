"""softmax over the last axis, and its gradient."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate, is_half, numpy_style, storer, widener


def softmax_into(xp: Any, x: Any, out: Any) -> tuple[Any, Any]:
    """Write softmax(x) to ``out``; return the greatest and the sum of exp(x - greatest) of each row."""
    top = xp.max(x, axis=-1, keepdims=True)
    xp.subtract(x, top, out)
    xp.exp(out, out)
    total = xp.sum(out, axis=-1, keepdims=True)
    xp.divide(out, total, out)
    return top, total


def softmax_into_host(xp: Any, x: Any, out: Any) -> tuple[Any, Any]:
    """The same on NumPy, whose ufuncs reduce with less overhead than its functions."""
    top = xp.maximum.reduce(x, -1, None, None, True)
    xp.subtract(x, top, out)
    xp.exp(out, out)
    total = xp.add.reduce(out, -1, None, None, True)
    xp.divide(out, total, out)
    return top, total


def softmax_of(xp: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return softmax(x), and the greatest and the sum of exp(x - greatest) of each row."""
    top = xp.max(x, axis=-1, keepdims=True)
    e = xp.exp(x - top)
    total = xp.sum(e, axis=-1, keepdims=True)
    return e / total, top, total


@register_kernel("softmax", "array", inplace=True)
def softmax(call: Call, context: Context) -> Any:
    """Out = exp(X - max) / sum of the same, row by row."""
    xp = context.xp
    if numpy_style(context) and not is_half(call.dtype("X")):
        into = softmax_into_host if immediate(context) else softmax_into

        def run_into(context: Context, io: IO) -> None:
            into(xp, io.array("X"), io.array("Out"))

        return run_into

    widen, store = widener(call.dtype("X"), context), storer(context)

    def run(context: Context, io: IO) -> None:
        store(io.array("Out"), softmax_of(xp, widen(io.array("X")))[0])

    return run


@register_kernel("softmax_grad", "array")
def softmax_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out * (Out@GRAD - sum of Out * Out@GRAD over the row)."""
    xp = context.xp
    if numpy_style(context) and not is_half(call.dtype("Out")):
        total = xp.add.reduce if immediate(context) else xp.sum

        def run_into(context: Context, io: IO) -> None:
            out, dout, dx = io.array("Out"), io.array("Out@GRAD"), io.array("X@GRAD")
            xp.multiply(out, dout, dx)
            dot = total(dx, -1, None, None, True)
            xp.subtract(dout, dot, dx)
            xp.multiply(dx, out, dx)

        return run_into

    widen, store = widener(call.dtype("Out"), context), storer(context)

    def run(context: Context, io: IO) -> None:
        out, dout = widen(io.array("Out")), widen(io.array("Out@GRAD"))
        store(io.array("X@GRAD"), out * (dout - xp.sum(out * dout, axis=-1, keepdims=True)))

    return run
