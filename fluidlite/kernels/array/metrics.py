"""accuracy, mean_iou, precision_recall."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate
from .counting import counts


@register_kernel("accuracy", "array")
def accuracy(call: Call, context: Context) -> Any:
    """Accuracy = Correct / Total, where a row is correct if any of its indices is its label."""
    xp, rows, on_host = context.xp, call.dims("Indices")[0], immediate(context)

    def run(context: Context, io: IO) -> None:
        hit = io.array("Indices") == xp.reshape(io.array("Label"), (rows, 1))
        if on_host:
            correct = xp.count_nonzero(hit.any(1))
        else:
            correct = xp.sum(xp.astype(xp.any(hit, axis=1), xp.int32), dtype=xp.int32)
        if io.has("Accuracy"):
            out = io.array("Accuracy")
            out[...] = (correct if on_host else xp.astype(correct, out.dtype)) / max(rows, 1)
        if io.has("Correct"):
            io.array("Correct")[...] = correct
        if io.has("Total"):
            io.array("Total")[...] = rows

    return run


CELLS = 65536
"""Up to so many pairs of classes are counted together, in one pass."""


@register_kernel("mean_iou", "array", indexes=True)
def mean_iou(call: Call, context: Context) -> Any:
    """OutCorrect, OutWrong: right and wrong ones of each class; OutMeanIou: the mean of right / (right + wrong)."""
    xp, n, items = context.xp, call.attr("num_classes"), prod(call.dims("Predictions"))
    together = immediate(context) and n * n <= CELLS

    def run(context: Context, io: IO) -> None:
        found, label = (
            context.check_index(xp.reshape(io.array(slot), (items,)), n, io) for slot in ("Predictions", "Labels")
        )
        if together:
            table = counts(context, xp.astype(label, xp.int64, copy=False) * n + found, n * n).reshape(n, n)
            correct = table.diagonal()
            either = table.sum(0) + table.sum(1)
        else:
            hit = xp.astype(found == label, xp.int64)
            correct = xp.astype(counts(context, found, n, hit), xp.int64, copy=False)
            either = counts(context, found, n) + counts(context, label, n)
        wrong = either - 2 * correct
        for more in io.arrays("InCorrects") if call.has("InCorrects") else ():
            correct = correct + xp.astype(more, xp.int64)
        for more in io.arrays("InWrongs") if call.has("InWrongs") else ():
            wrong = wrong + xp.astype(more, xp.int64)
        for slot, value in (("OutWrong", wrong), ("OutCorrect", correct)):
            if io.has(slot):
                io.array(slot)[...] = xp.astype(value, xp.int32)
        if not io.has("OutMeanIou"):
            return
        occurs = correct + wrong > 0
        total = xp.astype(xp.where(occurs, correct + wrong, xp.ones_like(wrong)), xp.float32)
        count = xp.sum(xp.astype(occurs, xp.float32))
        mean = xp.sum(xp.astype(correct, xp.float32) / total) / xp.maximum(count, xp.ones_like(count))
        for more in io.arrays("InMeanIou") if call.has("InMeanIou") else ():
            mean = mean + more[0]
        io.array("OutMeanIou")[...] = mean

    return run


@register_kernel("precision_recall", "array", indexes=True, inplace=True)
def precision_recall(call: Call, context: Context) -> Any:
    """AccumStatesInfo: the four counts of each class; BatchMetrics and AccumMetrics: the scores of both states."""
    xp, n, rows = context.xp, call.attr("class_number"), call.dims("Indices")[0]
    weighted = call.has("Weights")

    def run(context: Context, io: IO) -> None:
        found, label = (
            context.check_index(xp.reshape(io.array(slot), (rows,)), n, io) for slot in ("Indices", "Labels")
        )
        kind = getattr(xp, call.dtype("MaxProbs"))
        weights = xp.reshape(io.array("Weights"), (rows,)) if weighted else xp.ones((rows,), dtype=kind)
        hit = found == label
        right, missed = (xp.where(chosen, weights, xp.zeros_like(weights)) for chosen in (hit, ~hit))
        tp, fp, fn = (
            xp.astype(counts(context, *pair), kind, copy=False)
            for pair in ((found, n, right), (found, n, missed), (label, n, missed))
        )
        states = xp.stack([tp, fp, xp.sum(weights) - (tp + fp + fn), fn], axis=1)
        total = states + io.array("StatesInfo") if call.has("StatesInfo") else states
        for slot, value in (("BatchMetrics", states), ("AccumMetrics", total)):
            if io.has(slot):
                io.array(slot)[...] = xp.astype(_scores(xp, value), xp.float64)
        if io.has("AccumStatesInfo"):
            io.array("AccumStatesInfo")[...] = total

    return run


def _scores(xp: Any, states: Any) -> Any:
    """Precision, recall and F1 as means over the classes, then of the sums over the classes."""

    def rate(right: Any, wrong: Any) -> Any:
        some = (right > 0) | (wrong > 0)
        one = xp.ones_like(right)
        return xp.where(some, right / xp.where(some, right + wrong, one), one)

    def all_three(precision: Any, recall: Any) -> list[Any]:
        some = (precision > 0) | (recall > 0)
        both = xp.where(some, precision + recall, xp.ones_like(precision))
        return [precision, recall, xp.where(some, 2 * precision * recall / both, xp.zeros_like(both))]

    tp, fp, fn = states[:, 0], states[:, 1], states[:, 3]
    sums = [xp.sum(column) for column in (tp, fp, fn)]
    means = [xp.mean(rate(tp, fp)), xp.mean(rate(tp, fn))]
    return xp.stack([*all_three(*means), *all_three(rate(sums[0], sums[1]), rate(sums[0], sums[2]))])
