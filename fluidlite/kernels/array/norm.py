"""norm (to length 1 along an axis) and lrn (by neighbouring channels), with gradients."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .common import immediate, storer, widener
from .lines import by_lines, products
from .moments_host import Parts, Work, finish
from .threads import each_part


def _norm_into(epsilon: float, xp: Any, x: Any, out: Any, length: Any) -> None:
    xp.sqrt(products(xp, x, x, out) + epsilon, length)
    xp.divide(x, length, out)


def _norm(epsilon: float, xp: Any, x: Any) -> Any:
    length = xp.sqrt(xp.sum(x * x, axis=1, keepdims=True) + epsilon)
    return x / length, length


def _norm_grad_into(xp: Any, x: Any, length: Any, dout: Any, dx: Any) -> None:
    along = products(xp, x, dout, dx) / (length * length)
    xp.multiply(x, along, dx)
    xp.subtract(dout, dx, dx)
    xp.divide(dx, length, dx)


def _norm_grad(xp: Any, x: Any, length: Any, dout: Any) -> Any:
    along = xp.sum(x * dout, axis=1, keepdims=True) / (length * length)
    return (dout - x * along) / length


@register_kernel("norm", "array")
def norm(call: Call, context: Context) -> Any:
    """Out = X / Norm."""
    epsilon = call.attr("epsilon")
    if not call.has("Norm"):

        def into(xp: Any, x: Any, out: Any) -> None:
            _norm_into(epsilon, xp, x, out, xp.empty_like(out[:, :1]))

        return by_lines(call, context, ("X",), ("Out",), into, lambda xp, x: _norm(epsilon, xp, x)[0])
    return by_lines(call, context, ("X",), ("Out", "Norm"), partial(_norm_into, epsilon), partial(_norm, epsilon))


@register_kernel("norm_grad", "array")
def norm_grad(call: Call, context: Context) -> Any:
    """X@GRAD = what of Out@GRAD is across X, divided by Norm."""
    return by_lines(call, context, ("X", "Norm", "Out@GRAD"), ("X@GRAD",), _norm_grad_into, _norm_grad)


# lrn ---------------------------------------------------------------------------------------------------------------


def _channels(call: Call) -> int:
    return 3 if call.attr("data_format") == "NHWC" else 1


def _near(xp: Any, values: Any, axis: int, n: int) -> Any:
    """Sums of ``n`` neighbours along an axis, from zeros beyond its ends."""
    half, size = min(n // 2, values.shape[axis] - 1), values.shape[axis]
    total = xp.zeros_like(values)
    for shift in range(-half, half + 1):
        low, high = max(0, -shift), min(size, size - shift)
        to = (*[slice(None)] * axis, slice(low, high), ...)
        start = (*[slice(None)] * axis, slice(low + shift, high + shift), ...)
        total[to] += values[start]
    return total


def _by_images(call: Call, context: Context, ins: tuple[str, ...], outs: tuple[str, ...], compute: Any) -> Any:
    """``compute(*inputs) -> outputs`` on the whole batch; in host memory on a few images at a time."""
    xp, dims, store = context.xp, call.dims("X"), storer(context)
    widen, host = widener(call.dtype("X"), context), immediate(context)
    kind = getattr(xp, compute_dtype(call.dtype("X")))

    def run(context: Context, io: IO) -> None:
        if not host or not prod(dims):
            for slot, result in zip(outs, compute(*(widen(io.array(slot)) for slot in ins)), strict=True):
                if io.has(slot):
                    store(io.array(slot), result)
            return
        sources = [io.array(slot) for slot in ins]
        targets = [io.array(slot) if io.has(slot) else None for slot in outs]
        parts = Parts(dims, 0, kind)

        def worker() -> Work:
            def work(part: int) -> None:
                results = compute(*(widen(parts.of(source, part)) for source in sources))
                for target, result in zip(targets, results, strict=True):
                    if target is not None:
                        finish(parts.of(target, part), result)

            return work

        each_part(context, parts.number, worker)

    return run


@register_kernel("lrn", "array")
def lrn(call: Call, context: Context) -> Any:
    """Out = X MidOut^-beta; a power is the exponential of a logarithm, for MidOut is above 0."""
    xp, axis, n = context.xp, _channels(call), call.attr("n")
    k, alpha, beta = (call.attr(name) for name in ("k", "alpha", "beta"))

    def compute(x: Any) -> tuple[Any, Any]:
        middle = _near(xp, x * x, axis, n) * alpha + k
        return x * xp.exp(xp.log(middle) * -beta), middle

    return _by_images(call, context, ("X",), ("Out", "MidOut"), compute)


@register_kernel("lrn_grad", "array")
def lrn_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD MidOut^-beta - 2 alpha beta X (the neighbours' sum of Out Out@GRAD / MidOut)."""
    xp, axis, n = context.xp, _channels(call), call.attr("n")
    factor, beta = -2 * call.attr("alpha") * call.attr("beta"), call.attr("beta")

    def compute(x: Any, out: Any, middle: Any, dout: Any) -> tuple[Any]:
        near = _near(xp, out * dout / middle, axis, n)
        return (dout * xp.exp(xp.log(middle) * -beta) + near * x * factor,)

    return _by_images(call, context, ("X", "Out", "MidOut", "Out@GRAD"), ("X@GRAD",), compute)
