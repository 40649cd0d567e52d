"""bpr_loss and cross_entropy2, with gradients."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate, rows_of, storer, widener
from .labels import Classes, Labels
from .loss import log_or_least
from .threads import each_part

BLOCK = 65536
"""Elements of a block of rows, which stays in a core's second-level cache."""


def _step(rows: int, classes: int, context: Context) -> int:
    """How many rows one takes at a time; all where a call is queued."""
    return max(1, BLOCK // max(classes, 1)) if immediate(context) else max(rows, 1)


def _apart(xp: Any, x: Any, labels: Any, context: Context) -> tuple[Any, Any]:
    """Return x - x[label], -inf at the label itself, and where the labels are (a mask, or flat positions)."""
    rows, classes = x.shape
    if immediate(context):
        at = xp.arange(0, rows * classes, classes) + labels
        apart = x - x.reshape(-1)[at][:, None]
        apart.reshape(-1)[at] = -xp.inf
        return apart, at
    mask = xp.arange(classes, dtype=labels.dtype)[None, :] == labels[:, None]
    chosen = xp.sum(xp.where(mask, x, xp.zeros_like(x)), axis=1, keepdims=True)
    return xp.where(mask, xp.full_like(x, -xp.inf), x - chosen), mask


@register_kernel("bpr_loss", "array", indexes=True)
def bpr_loss(call: Call, context: Context) -> Any:
    """Y = the mean of log(1 + exp(X[j] - X[label])) over the other classes."""
    xp, shape = context.xp, rows_of(call.dims("X"))
    rows, classes = shape
    labels_of, widen, store = Classes(*shape), widener(call.dtype("X"), context), storer(context)
    step = _step(rows, classes, context)

    def run(context: Context, io: IO) -> None:
        labels = labels_of.read(context, io)
        x, y = xp.reshape(io.array("X"), shape), xp.reshape(io.array("Y"), (rows,))

        def work(part: int) -> None:
            block = slice(part * step, min((part + 1) * step, rows))
            apart, _ = _apart(xp, widen(x[block, :]), labels[block], context)
            costs = xp.log1p(xp.exp(-xp.abs(apart)))
            costs += xp.maximum(apart, xp.zeros_like(apart))
            store(y[block], xp.sum(costs, axis=1) / (classes - 1))

        each_part(context, -(-rows // step), lambda: work)

    return run


@register_kernel("bpr_loss_grad", "array", indexes=True)
def bpr_loss_grad(call: Call, context: Context) -> Any:
    """X@GRAD[j] = Y@GRAD / (1 + exp(X[label] - X[j])) / (classes - 1), and at the label less their sum."""
    xp, shape = context.xp, rows_of(call.dims("X"))
    rows, classes = shape
    labels_of, widen = Classes(*shape), widener(call.dtype("X"), context)
    step, on_host = _step(rows, classes, context), immediate(context)

    def run(context: Context, io: IO) -> None:
        labels = labels_of.read(context, io)
        x, dx = (xp.reshape(io.array(slot), shape) for slot in ("X", "X@GRAD"))
        dy = widen(xp.reshape(io.array("Y@GRAD"), (rows, 1))) / (classes - 1)

        def work(part: int) -> None:
            block = slice(part * step, min((part + 1) * step, rows))
            apart, where = _apart(xp, widen(x[block, :]), labels[block], context)
            grad = dy[block, :] * (0.5 + 0.5 * xp.tanh(0.5 * apart))  # the sigmoid, which cannot overflow so
            total = xp.sum(grad, axis=1, keepdims=True)
            if on_host:
                grad.reshape(-1)[where] = -total[:, 0]
            else:
                grad = xp.where(where, -total, grad)
            dx[block, :] = xp.astype(grad, dx.dtype, copy=False)

        each_part(context, -(-rows // step), lambda: work)

    return run


@register_kernel("cross_entropy2", "array", indexes=True)
def cross_entropy2(call: Call, context: Context) -> Any:
    """MatchX = X[label], Y = -log(MatchX); both 0 in ignored rows."""
    xp, shape = context.xp, rows_of(call.dims("X"))
    widen, store, labels_of = widener(call.dtype("X"), context), storer(context), Labels(call, *shape)

    def run(context: Context, io: IO) -> None:
        labels, ignored = labels_of.read(context, io)
        match = widen(labels_of.pick(xp, xp.reshape(io.array("X"), shape), labels))
        loss = -log_or_least(xp, match)
        if ignored is not None:
            match, loss = (xp.where(ignored, xp.zeros_like(value), value) for value in (match, loss))
        for slot, value in (("Y", loss), ("MatchX", match)):
            if io.has(slot):
                store(io.array(slot), value)

    return run


@register_kernel("cross_entropy_grad2", "array", indexes=True)
def cross_entropy_grad2(call: Call, context: Context) -> Any:
    """X@GRAD = -Y@GRAD / MatchX at the label, 0 elsewhere."""
    xp, dims = context.xp, call.dims("X@GRAD")
    shape = (prod(dims[:-1]), dims[-1])
    widen, store, labels_of = widener(call.dtype("X@GRAD"), context), storer(context), Labels(call, *shape)
    on_host = immediate(context)

    def run(context: Context, io: IO) -> None:
        labels, ignored = labels_of.read(context, io)
        match, dy = (xp.reshape(widen(io.array(slot)), (-1,)) for slot in ("MatchX", "Y@GRAD"))
        if ignored is not None:
            match, dy = xp.where(ignored, xp.ones_like(match), match), xp.where(ignored, xp.zeros_like(dy), dy)
        value, grad = -dy / match, io.array("X@GRAD")
        if on_host:
            grad.fill(0)
            grad.reshape(-1)[labels_of.positions(xp, labels)] = value
        else:
            store(grad, labels_of.one_hot(xp, labels, value.dtype) * value[:, None])

    return run
