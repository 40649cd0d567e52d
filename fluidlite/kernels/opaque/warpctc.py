"""warpctc and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError
from fluidlite.plugin import IO, Call, Context, register_kernel

from .paths import ctc
from .ragged import Array, lengths_of, sequences

FLOATS = ("float32", "float64")


def _steps(call: Call, io: IO, longest: int) -> Array:
    if io.has("LogitsLength"):
        return lengths_of(io, "LogitsLength", longest, "Logits")
    return np.diff(np.asarray(call.lod("Logits")[-1], np.int64))


def _rows(call: Call) -> Array:
    """Where the steps of sequences with LoD are: [longest, sequences]; behind a sequence's last it is that."""
    starts = np.asarray(call.lod("Logits")[-1], np.int64)
    steps = np.diff(starts)
    at = np.arange(steps.max(initial=0))[:, None]
    rows: Array = np.clip(starts[:-1] + np.minimum(at, steps - 1), 0, max(int(starts[-1]) - 1, 0))
    return rows


def _need_classes(labels: list[Array], classes: int, blank: int) -> None:
    for i, label in enumerate(labels):
        wrong = label[(label < 0) | (label >= classes) | (label == blank)]
        if len(wrong):
            raise OutOfRangeError(
                f"Label holds {wrong[0]} in sequence {i}; expected a class from 0 to {classes - 1} "
                f"that is not the blank, {blank}"
            )


@register_kernel("warpctc", "cpu", dtypes=FLOATS)
def warpctc(call: Call, context: Context) -> Any:
    """Loss = -log(the sum of the probabilities of the paths of Label), and its derivative."""
    blank, padded = call.attr("blank"), call.has("LogitsLength")

    def run(context: Context, io: IO) -> None:
        labels = sequences(call, io, "Label", "LabelLength")
        logits = io.array("Logits")
        _need_classes(labels, logits.shape[-1], blank)
        steps = _steps(call, io, logits.shape[0])
        rows = None if padded else _rows(call)
        costs, derivative = ctc(logits if rows is None else logits[rows], steps, labels, blank)
        if io.has("Loss"):
            io.array("Loss")[...] = costs[:, None]
        if io.has("WarpCTCGrad"):
            found = io.array("WarpCTCGrad")
            if rows is None:
                found[...] = derivative
            else:
                inside = np.arange(len(rows))[:, None] < steps
                found[rows[inside]] = derivative[inside]

    return run


@register_kernel("warpctc_grad", "cpu", dtypes=FLOATS)
def warpctc_grad(call: Call, context: Context) -> Any:
    """Logits@GRAD = WarpCTCGrad times the gradient of its sequence's Loss."""
    normed, padded = call.attr("norm_by_times"), call.has("LogitsLength")

    def run(context: Context, io: IO) -> None:
        derivative, weight = io.array("WarpCTCGrad"), io.array("Loss@GRAD").reshape(-1)
        steps = _steps(call, io, derivative.shape[0])
        if normed:
            weight = weight / np.maximum(steps, 1).astype(weight.dtype)
        each = weight[:, None] if padded else np.repeat(weight, steps)[:, None]
        io.array("Logits@GRAD")[...] = derivative * each

    return run
