"""layer_norm, group_norm and instance_norm, with gradients."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from . import moments, moments_host
from .common import immediate, storer, widener
from .moments import View, view_of
from .moments_grad import Gradients


def given(io: IO, xp: Any, slot: str, shape: tuple[int, ...]) -> Any:
    """An input in a shape, or None if it is not given."""
    return xp.reshape(io.array(slot), shape) if io.has(slot) else None


def _forward(call: Call, context: Context, mean_slot: str, spread_slot: str, inverted: bool) -> Any:
    """Y and the statistics; of the variance its value, or 1 / sqrt of it and epsilon."""
    xp, view, epsilon, store = context.xp, view_of(call), call.attr("epsilon"), storer(context)
    widen, host = widener(call.dtype("X"), context), immediate(context)
    kind = getattr(xp, compute_dtype(call.dtype("X")))

    def run(context: Context, io: IO) -> None:
        scale, bias = (given(io, xp, slot, view.parameter) for slot in ("Scale", "Bias"))
        x = xp.reshape(io.array("X"), view.dims)
        if host:
            y = io.array("Y").reshape(view.dims)
            mean, variance = moments_host.forward(context, x, y, view, scale, bias, epsilon, kind)
        else:
            y, mean, variance = moments.forward(xp, widen(x), view, epsilon)
            y = y if scale is None else y * scale
            store(io.array("Y"), y if bias is None else y + bias)
        if io.has(mean_slot):
            store(io.array(mean_slot), mean)
        if io.has(spread_slot):
            store(io.array(spread_slot), 1 / xp.sqrt(variance + epsilon) if inverted else variance)

    return run


def _backward(call: Call, context: Context, mean_slot: str, spread_slot: str, inverted: bool) -> Any:
    xp, view, epsilon = context.xp, view_of(call), call.attr("epsilon")

    def statistics(io: IO) -> tuple[Any, Any]:
        mean, spread = (xp.reshape(io.array(slot), view.statistic) for slot in (mean_slot, spread_slot))
        return mean, spread if inverted else 1 / xp.sqrt(spread + epsilon)

    return gradients(call, context, view, statistics, False)


def gradients(call: Call, context: Context, view: View, statistics: Any, fixed: bool) -> Any:
    """The gradients of X, Scale and Bias; ``statistics(io)`` gives mean and 1 / deviation in the view's shape."""
    xp, store, host = context.xp, storer(context), immediate(context)
    widen, kind = widener(call.dtype("X"), context), getattr(context.xp, compute_dtype(call.dtype("X")))
    wanted = call.has("Scale@GRAD") or call.has("Bias@GRAD")

    def run(context: Context, io: IO) -> None:
        x, dy = (xp.reshape(io.array(slot), view.dims) for slot in ("X", "Y@GRAD"))
        scale = given(io, xp, "Scale", view.parameter)
        mean, inverse = statistics(io)
        if host:
            dx = io.array("X@GRAD").reshape(view.dims) if io.has("X@GRAD") else None
            found = Gradients(
                context, view, x, dy, dx, mean, inverse, scale, fixed, wanted, kind
            )  # fmt: skip
            dscale, dbias = found.dscale, found.dbias
        else:
            dx, dscale, dbias = moments.backward(xp, widen(x), widen(dy), mean, inverse, scale, view, fixed)
            if io.has("X@GRAD"):
                store(io.array("X@GRAD"), dx)
        for slot, value in (("Scale@GRAD", dscale), ("Bias@GRAD", dbias)):
            if io.has(slot):
                store(io.array(slot), value)

    return run


@register_kernel("layer_norm", "array")
def layer_norm(call: Call, context: Context) -> Any:
    """Rows are normalised."""
    return _forward(call, context, "Mean", "Variance", False)


@register_kernel("layer_norm_grad", "array")
def layer_norm_grad(call: Call, context: Context) -> Any:
    """Its gradients."""
    return _backward(call, context, "Mean", "Variance", False)


@register_kernel("group_norm", "array")
def group_norm(call: Call, context: Context) -> Any:
    """Groups of channels of a sample are normalised."""
    return _forward(call, context, "Mean", "Variance", False)


@register_kernel("group_norm_grad", "array")
def group_norm_grad(call: Call, context: Context) -> Any:
    """Its gradients."""
    return _backward(call, context, "Mean", "Variance", False)


@register_kernel("instance_norm", "array")
def instance_norm(call: Call, context: Context) -> Any:
    """Channels of a sample are normalised."""
    return _forward(call, context, "SavedMean", "SavedVariance", True)


@register_kernel("instance_norm_grad", "array")
def instance_norm_grad(call: Call, context: Context) -> Any:
    """Its gradients."""
    return _backward(call, context, "SavedMean", "SavedVariance", True)
