"""smooth_l1_loss with its gradient, and the reductions of kldiv_loss, in functions of the standard."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate, storer, widener
from .losses_regression_host import kldiv_on_host, smooth_l1_grad_on_host, smooth_l1_on_host


@register_kernel("smooth_l1_loss", "array")
def smooth_l1_loss(call: Call, context: Context) -> Any:
    """Out = the sum of each row's losses; near = min(|d|, 1 / sigma^2) gives both branches in one product."""
    if immediate(context):
        return smooth_l1_on_host(call, context)
    xp, dims = context.xp, call.dims("X")
    shape, square = (dims[0], prod(dims[1:])), call.attr("sigma") ** 2
    widen, store = widener(call.dtype("X"), context), storer(context)

    def run(context: Context, io: IO) -> None:
        diff = widen(io.array("X")) - widen(io.array("Y"))
        if call.has("InsideWeight"):
            diff = diff * widen(io.array("InsideWeight"))
        if io.has("Diff"):
            store(io.array("Diff"), diff)
        if not io.has("Out"):
            return
        distance = xp.abs(diff)
        near = xp.minimum(distance, xp.full_like(distance, 1 / square if square else 0.0))
        loss = near * (distance - 0.5 * near)
        if call.has("OutsideWeight"):
            loss = loss * widen(io.array("OutsideWeight"))
        store(io.array("Out"), square * xp.sum(xp.reshape(loss, shape), axis=1))

    return run


@register_kernel("smooth_l1_loss_grad", "array")
def smooth_l1_loss_grad(call: Call, context: Context) -> Any:
    """X@GRAD = weights * min(max(sigma^2 * Diff, -1), 1) * Out@GRAD of the row, Y@GRAD its negative."""
    if immediate(context):
        return smooth_l1_grad_on_host(call, context)
    xp, dims = context.xp, call.dims("Diff")
    square, widen, store = call.attr("sigma") ** 2, widener(call.dtype("Diff"), context), storer(context)
    weights = [slot for slot in ("InsideWeight", "OutsideWeight") if call.has(slot)]

    def run(context: Context, io: IO) -> None:
        dout = widen(xp.reshape(io.array("Out@GRAD"), (dims[0],) + (1,) * (len(dims) - 1)))
        grad = xp.clip(square * widen(io.array("Diff")), -1, 1) * dout
        for slot in weights:
            grad = grad * widen(io.array(slot))
        for slot, value in (("X@GRAD", grad), ("Y@GRAD", -grad)):
            if io.has(slot):
                store(io.array(slot), value)

    return run


def _sums(call: Call) -> str | None:
    return "an expression gives the losses themselves" if call.attr("reduction") == "none" else None


@register_kernel("kldiv_loss", "array", supports=_sums)
def kldiv_loss(call: Call, context: Context) -> Any:
    """Loss = the sum of Target * (log(Target) - X), divided as the reduction says."""
    xp, dims = context.xp, call.dims("X")
    divisor = max({"mean": prod(dims), "batchmean": dims[0]}.get(call.attr("reduction"), 1), 1)
    if immediate(context):
        return kldiv_on_host(call, context, divisor)
    widen, store = widener(call.dtype("X"), context), storer(context)

    def run(context: Context, io: IO) -> None:
        x, target = widen(io.array("X")), widen(io.array("Target"))
        counts = target > 0
        logs = xp.log(xp.where(counts, target, xp.ones_like(target)))
        total = xp.sum(xp.where(counts, target * (logs - x), xp.zeros_like(x)))
        store(io.array("Loss"), xp.reshape(total / divisor, (1,)))

    return run
