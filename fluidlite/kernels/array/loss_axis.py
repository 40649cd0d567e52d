"""softmax_with_cross_entropy where the classes do not lie along the last axis, in functions of the standard."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context

from .common import storer, widener
from .labels import Labels
from .loss_host import parts_of


def loss_along_axis(call: Call, context: Context) -> Any:
    """Softmax = exp(Logits - max) / total; Loss = log(total) - (Logits - max)[label]."""
    xp, dims = context.xp, parts_of(call.dims("Logits"), call.attr("axis"))
    outer, classes, inner = dims
    widen, store = widener(call.dtype("Logits"), context), storer(context)
    labels_of = None if call.attr("soft_label") else Labels(call, outer * inner, classes)

    def run(context: Context, io: IO) -> None:
        x = widen(xp.reshape(io.array("Logits"), dims))
        below = x - xp.max(x, axis=1, keepdims=True)
        e = xp.exp(below)
        total = xp.sum(e, axis=1, keepdims=True)
        if io.has("Softmax"):
            store(io.array("Softmax"), e / total)
        if not io.has("Loss"):
            return
        logs = xp.log(total)
        if labels_of is None:
            loss = xp.sum(widen(xp.reshape(io.array("Label"), dims)) * (logs - below), axis=1)
        else:
            labels, ignored = labels_of.read(context, io)
            chosen = _chosen(xp, labels, dims)
            loss = logs[:, 0, :] - xp.sum(xp.where(chosen, below, xp.zeros_like(below)), axis=1)
            if ignored is not None:
                loss = xp.where(xp.reshape(ignored, (outer, inner)), xp.zeros_like(loss), loss)
        store(io.array("Loss"), loss)

    return run


def _chosen(xp: Any, labels: Any, dims: tuple[int, int, int]) -> Any:
    """Where the class is the row's label, [outer, classes, inner]."""
    outer, classes, inner = dims
    return xp.arange(classes, dtype=labels.dtype)[None, :, None] == xp.reshape(labels, (outer, 1, inner))


def loss_grad_along_axis(call: Call, context: Context) -> Any:
    """Logits@GRAD = (Softmax - label) * Loss@GRAD; 0 in ignored rows."""
    xp, dims = context.xp, parts_of(call.dims("Softmax"), call.attr("axis"))
    outer, classes, inner = dims
    widen, store = widener(call.dtype("Softmax"), context), storer(context)
    labels_of = None if call.attr("soft_label") else Labels(call, outer * inner, classes)

    def run(context: Context, io: IO) -> None:
        y = widen(xp.reshape(io.array("Softmax"), dims))
        dloss = widen(xp.reshape(io.array("Loss@GRAD"), (outer, 1, inner)))
        if labels_of is None:
            target = widen(xp.reshape(io.array("Label"), dims))
        else:
            labels, ignored = labels_of.read(context, io)
            target = xp.astype(_chosen(xp, labels, dims), y.dtype)
            if ignored is not None:
                dloss = xp.where(xp.reshape(ignored, (outer, 1, inner)), xp.zeros_like(dloss), dloss)
        store(io.array("Logits@GRAD"), (y - target) * dloss)

    return run
