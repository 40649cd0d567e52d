"""softmax and log_softmax over an axis, with their gradients."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import Call, Context, register_kernel

from .lines import by_lines, products


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


def _softmax_into(xp: Any, x: Any, out: Any) -> None:
    xp.subtract(x, xp.max(x, 1, keepdims=True), out)
    xp.exp(out, out)
    xp.divide(out, xp.sum(out, 1, keepdims=True), out)


def _softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=1, keepdims=True))
    return e / xp.sum(e, axis=1, keepdims=True)


def _softmax_grad_into(xp: Any, out: Any, dout: Any, dx: Any) -> None:
    xp.subtract(dout, products(xp, out, dout, dx), dx)
    xp.multiply(dx, out, dx)


def _softmax_grad(xp: Any, out: Any, dout: Any) -> Any:
    return out * (dout - xp.sum(out * dout, axis=1, keepdims=True))


def _log_into(xp: Any, x: Any, out: Any) -> None:
    xp.subtract(x, xp.max(x, 1, keepdims=True), out)
    xp.subtract(out, xp.log(xp.sum(xp.exp(out), 1, keepdims=True)), out)


def _log(xp: Any, x: Any) -> Any:
    less = x - xp.max(x, axis=1, keepdims=True)
    return less - xp.log(xp.sum(xp.exp(less), axis=1, keepdims=True))


def _log_grad_into(xp: Any, out: Any, dout: Any, dx: Any) -> None:
    xp.exp(out, dx)
    xp.multiply(dx, xp.sum(dout, 1, keepdims=True), dx)
    xp.subtract(dout, dx, dx)


def _log_grad(xp: Any, out: Any, dout: Any) -> Any:
    return dout - xp.exp(out) * xp.sum(dout, axis=1, keepdims=True)


@register_kernel("softmax", "array", inplace=True)
def softmax(call: Call, context: Context) -> Any:
    """Out = exp(X - max) / sum of the same, line by line."""
    return by_lines(call, context, ("X",), ("Out",), _softmax_into, _softmax)


@register_kernel("softmax_grad", "array")
def softmax_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out * (Out@GRAD - sum of Out * Out@GRAD over the line)."""
    return by_lines(call, context, ("Out", "Out@GRAD"), ("X@GRAD",), _softmax_grad_into, _softmax_grad)


@register_kernel("log_softmax", "array")
def log_softmax(call: Call, context: Context) -> Any:
    """Out = X - max - log of the sum of exp(X - max), line by line."""
    return by_lines(call, context, ("X",), ("Out",), _log_into, _log)


@register_kernel("log_softmax_grad", "array")
def log_softmax_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD - exp(Out) * sum of Out@GRAD over the line."""
    return by_lines(call, context, ("Out", "Out@GRAD"), ("X@GRAD",), _log_grad_into, _log_grad)
