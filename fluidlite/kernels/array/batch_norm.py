"""batch_norm: by the batch's statistics, or by the averages of earlier ones; with its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from . import moments, moments_host
from .common import immediate, storer, widener
from .layer_norm import given, gradients
from .moments import view_of


def by_averages(call: Call) -> bool:
    """Whether Mean and Variance normalise, and are left as they are."""
    return bool(call.attr("use_global_stats") or (call.attr("is_test") and not call.attr("trainable_statistics")))


def single(call: Call) -> bool:
    """Whether a channel has one element only, so that there is nothing to normalise by."""
    return not by_averages(call) and view_of(call).elements == 1


def _single(call: Call, context: Context) -> Any:
    """Y = X, and averages stay."""
    store, keep = storer(context), _keeper(context)

    def run(context: Context, io: IO) -> None:
        if io.has("Y"):
            store(io.array("Y"), io.array("X"))
        for slot in ("SavedMean", "SavedVariance"):
            if io.has(slot):
                io.array(slot)[...] = 0.0
        keep(io)

    return run


def _keeper(context: Context) -> Callable[[IO], None]:
    """Return ``keep(io)``: MeanOut = Mean and VarianceOut = Variance; usually they are the same memory."""
    store = storer(context)

    def keep(io: IO) -> None:
        for slot in ("Mean", "Variance"):
            if io.has(slot + "Out"):
                store(io.array(slot + "Out"), io.array(slot))

    return keep


@register_kernel("batch_norm", "array")
def batch_norm(call: Call, context: Context) -> Any:
    """Y, moved averages and the statistics that were used."""
    if single(call):
        return _single(call, context)
    xp, view, epsilon, store = context.xp, view_of(call), call.attr("epsilon"), storer(context)
    widen, host = widener(call.dtype("X"), context), immediate(context)
    kind = getattr(xp, compute_dtype(call.dtype("X")))
    averages, momentum, keep = by_averages(call), call.attr("momentum"), _keeper(context)

    def affine(context: Context, io: IO, x: Any, scale: Any, bias: Any) -> tuple[Any, Any]:
        mean, variance = (xp.reshape(io.array(slot), view.parameter) for slot in ("Mean", "Variance"))
        factor = scale / xp.sqrt(variance + epsilon)
        if host:
            shift = bias - mean * factor
            moments_host.affine(context, x, io.array("Y").reshape(view.dims), factor, shift, None, kind)
        else:
            store(io.array("Y"), (widen(x) - mean) * factor + bias)
        keep(io)
        return mean, variance

    def normalise(context: Context, io: IO, x: Any, scale: Any, bias: Any) -> tuple[Any, Any]:
        if host:
            y = io.array("Y").reshape(view.dims)
            mean, variance = moments_host.forward(context, x, y, view, scale, bias, epsilon, kind)
        else:
            y, mean, variance = moments.forward(xp, widen(x), view, epsilon)
            store(io.array("Y"), y * scale + bias)
        kept: Any = momentum
        if io.has("MomentumTensor"):
            kept = xp.astype(io.array("MomentumTensor"), kind)
        for slot, value in (("Mean", mean), ("Variance", variance)):
            if io.has(slot + "Out"):
                old = xp.reshape(io.array(slot), (-1,))
                store(io.array(slot + "Out"), old * kept + xp.reshape(value, (-1,)) * (1 - kept))
        return mean, variance

    def run(context: Context, io: IO) -> None:
        x = xp.reshape(io.array("X"), view.dims)
        scale, bias = (given(io, xp, slot, view.parameter) for slot in ("Scale", "Bias"))
        mean, variance = (affine if averages else normalise)(context, io, x, scale, bias)
        if io.has("SavedMean"):
            store(io.array("SavedMean"), mean)
        if io.has("SavedVariance"):
            store(io.array("SavedVariance"), 1 / xp.sqrt(variance + epsilon))

    return run


@register_kernel("batch_norm_grad", "array")
def batch_norm_grad(call: Call, context: Context) -> Any:
    """The gradients of X, Scale and Bias."""
    if single(call):
        return _single_grad(call, context)
    xp, view = context.xp, view_of(call)

    def statistics(io: IO) -> tuple[Any, Any]:
        mean, inverse = (xp.reshape(io.array(slot), view.parameter) for slot in ("SavedMean", "SavedVariance"))
        return mean, inverse

    return gradients(call, context, view, statistics, by_averages(call))


def _single_grad(call: Call, context: Context) -> Any:
    store = storer(context)

    def run(context: Context, io: IO) -> None:
        if io.has("X@GRAD"):
            store(io.array("X@GRAD"), io.array("Y@GRAD"))
        for slot in ("Scale@GRAD", "Bias@GRAD"):
            if io.has(slot):
                io.array(slot)[...] = 0.0

    return run
