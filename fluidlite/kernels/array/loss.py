"""cross_entropy and softmax_with_cross_entropy, with gradients."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate, is_half, numpy_style, rows_of, storer, widener
from .labels import Labels
from .loss_axis import loss_along_axis, loss_grad_along_axis
from .loss_host import BLOCK, loss_grad_on_host, loss_on_host, parts_of
from .softmax import softmax_into, softmax_into_host, softmax_of

INFINITE = 1e20
"""What Fluid puts for the logarithm of zero, so that one impossible label does not spoil a whole loss."""


def _rows(call: Call, slot: str) -> tuple[int, int]:
    """Return the dims as (rows, classes); after the classes come only dims of 1."""
    outer, classes, _ = parts_of(call.dims(slot), call.attr("axis"))
    return outer, classes


@register_kernel("softmax_with_cross_entropy", "array", indexes=True)
def softmax_with_cross_entropy(call: Call, context: Context) -> Any:
    """Loss = log(sum(exp(Logits - max))) + max - Logits[label]; Softmax is kept for the gradient."""
    along = parts_of(call.dims("Logits"), call.attr("axis"))[2] != 1
    if immediate(context) and (along or prod(call.dims("Logits")) > BLOCK):
        return loss_on_host(call, context)
    if along:
        return loss_along_axis(call, context)
    xp, shape = context.xp, _rows(call, "Logits")
    soft, widen, store = call.attr("soft_label"), widener(call.dtype("Logits"), context), storer(context)
    labels_of = None if soft else Labels(call, *shape)
    fast = numpy_style(context) and not is_half(call.dtype("Logits")) and call.has("Softmax")
    if fast and labels_of is not None and immediate(context) and call.has("Loss"):
        return _host_loss(xp, shape, labels_of)
    into = softmax_into_host if immediate(context) else softmax_into

    def run(context: Context, io: IO) -> None:
        x = xp.reshape(widen(io.array("Logits")), shape)
        labels, ignored = labels_of.read(context, io) if labels_of is not None else (None, None)
        if fast:
            top, total = into(xp, x, io.array("Softmax").reshape(shape))
        else:
            value, top, total = softmax_of(xp, x)
            if io.has("Softmax"):
                store(io.array("Softmax"), value)
        if not io.has("Loss"):
            return
        if labels_of is None:
            target = xp.reshape(widen(io.array("Label")), shape)
            loss = xp.sum(target * (xp.log(total) + top - x), axis=-1)
        else:
            loss = xp.reshape(xp.log(total) + top, (-1,)) - labels_of.pick(xp, x, labels)
            if ignored is not None:
                loss = xp.where(ignored, xp.zeros_like(loss), loss)
        store(io.array("Loss"), loss)

    return run


def _host_loss(xp: Any, shape: tuple[int, int], labels_of: Labels) -> Any:
    """The usual case, with as few calls as NumPy allows: small batches consist of their overhead."""

    def run(context: Context, io: IO) -> None:
        labels, ignored = labels_of.read(context, io)
        x = io.array("Logits").reshape(shape)
        top, total = softmax_into_host(xp, x, io.array("Softmax").reshape(shape))
        loss = io.array("Loss").reshape(shape[0], 1)
        xp.log(total, loss)
        xp.add(loss, top, loss)
        loss = loss.reshape(-1)
        xp.subtract(loss, x.reshape(-1).take(labels_of.positions(xp, labels)), loss)
        if ignored is not None:
            loss[ignored] = 0

    return run


@register_kernel("softmax_with_cross_entropy_grad", "array", indexes=True)
def softmax_with_cross_entropy_grad(call: Call, context: Context) -> Any:
    """Logits@GRAD = (Softmax - label) * Loss@GRAD; 0 in ignored rows."""
    along = parts_of(call.dims("Softmax"), call.attr("axis"))[2] != 1
    if immediate(context) and (along or prod(call.dims("Softmax")) > BLOCK):
        return loss_grad_on_host(call, context)
    if along:
        return loss_grad_along_axis(call, context)
    xp, shape = context.xp, _rows(call, "Softmax")
    widen, store = widener(call.dtype("Softmax"), context), storer(context)
    if call.attr("soft_label"):

        def run_soft(context: Context, io: IO) -> None:
            softmax, target = (xp.reshape(widen(io.array(slot)), shape) for slot in ("Softmax", "Label"))
            store(io.array("Logits@GRAD"), (softmax - target) * xp.reshape(widen(io.array("Loss@GRAD")), (-1, 1)))

        return run_soft

    labels_of = Labels(call, *shape)
    if immediate(context) and not is_half(call.dtype("Softmax")):

        def run_host(context: Context, io: IO) -> None:
            labels, ignored = labels_of.read(context, io)
            dloss = io.array("Loss@GRAD").reshape(-1)
            if ignored is not None:
                dloss = xp.where(ignored, xp.zeros_like(dloss), dloss)
            grad = io.array("Logits@GRAD")
            xp.multiply(io.array("Softmax").reshape(shape), dloss[:, None], grad.reshape(shape))
            grad.reshape(-1)[labels_of.positions(xp, labels)] -= dloss  # one position a row: none repeats

        return run_host

    def run(context: Context, io: IO) -> None:
        labels, ignored = labels_of.read(context, io)
        dloss = xp.reshape(widen(io.array("Loss@GRAD")), (-1, 1))
        dloss = xp.where(xp.reshape(ignored, (-1, 1)), xp.zeros_like(dloss), dloss) if ignored is not None else dloss
        softmax = xp.reshape(widen(io.array("Softmax")), shape)
        store(io.array("Logits@GRAD"), (softmax - labels_of.one_hot(xp, labels, softmax.dtype)) * dloss)

    return run


@register_kernel("cross_entropy", "array", indexes=True)
def cross_entropy(call: Call, context: Context) -> Any:
    """Y = -log(X[label]), or -sum(Label * log(X)) of soft labels; infinity becomes 1e20."""
    xp, shape = context.xp, rows_of(call.dims("X"))
    widen, store = widener(call.dtype("X"), context), storer(context)
    labels_of = None if call.attr("soft_label") else Labels(call, *shape)

    def run_soft_on_host(context: Context, io: IO) -> None:
        x, label = (io.array(slot).reshape(shape) for slot in ("X", "Label"))
        y = io.array("Y").reshape(-1)
        for at in range(0, shape[0], step):
            rows = slice(at, at + step)
            store(y[rows], -xp.sum(widen(label[rows]) * log_or_least(xp, widen(x[rows])), axis=-1))

    def run(context: Context, io: IO) -> None:
        x = xp.reshape(widen(io.array("X")), shape)
        if labels_of is None:
            loss = -xp.sum(xp.reshape(widen(io.array("Label")), shape) * log_or_least(xp, x), axis=-1)
        else:
            labels, ignored = labels_of.read(context, io)
            loss = -log_or_least(xp, labels_of.pick(xp, x, labels))
            if ignored is not None:
                loss = xp.where(ignored, xp.zeros_like(loss), loss)
        store(io.array("Y"), loss)

    step = max(1, BLOCK // max(shape[1], 1))
    return run_soft_on_host if labels_of is None and immediate(context) else run


def log_or_least(xp: Any, x: Any) -> Any:
    """The logarithm, with -1e20 at zero."""
    zero = x == 0
    return xp.where(zero, xp.full_like(x, -INFINITE), xp.log(xp.where(zero, xp.ones_like(x), x)))


@register_kernel("cross_entropy_grad", "array", indexes=True)
def cross_entropy_grad(call: Call, context: Context) -> Any:
    """X@GRAD = -label * Y@GRAD / X; 0 in ignored rows."""
    xp, shape = context.xp, rows_of(call.dims("X"))
    widen, store = widener(call.dtype("X"), context), storer(context)
    if call.attr("soft_label"):

        def run_soft(context: Context, io: IO) -> None:
            x, target = (xp.reshape(widen(io.array(slot)), shape) for slot in ("X", "Label"))
            store(io.array("X@GRAD"), -(target * xp.reshape(widen(io.array("Y@GRAD")), (-1, 1))) / x)

        return run_soft

    labels_of = Labels(call, *shape)
    if immediate(context):

        def run_host(context: Context, io: IO) -> None:
            labels, ignored = labels_of.read(context, io)
            picked = widen(labels_of.pick(xp, io.array("X"), labels))
            value = -widen(io.array("Y@GRAD")).reshape(-1) / picked
            if ignored is not None:
                value = xp.where(ignored, xp.zeros_like(value), value)
            grad = io.array("X@GRAD").reshape(-1)
            grad.fill(0)
            grad[labels_of.positions(xp, labels)] = value

        return run_host

    def run(context: Context, io: IO) -> None:
        labels, ignored = labels_of.read(context, io)
        x = xp.reshape(widen(io.array("X")), shape)
        chosen = labels_of.one_hot(xp, labels, xp.bool)
        if ignored is not None:
            chosen = chosen & ~xp.reshape(ignored, (-1, 1))
        value = -xp.reshape(widen(io.array("Y@GRAD")), (-1, 1)) / xp.where(chosen, x, xp.ones_like(x))
        store(io.array("X@GRAD"), xp.where(chosen, value, xp.zeros_like(value)))

    return run
