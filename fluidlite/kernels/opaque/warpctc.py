"""warpctc (CTC loss) and its gradient."""

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
    """Return the rows [longest, sequences] of the steps of sequences with LoD, padded with a sequence's last row."""
    starts = np.asarray(call.lod("Logits")[-1], np.int64)
    steps = np.diff(starts)
    step = np.arange(steps.max(initial=0))[:, None]
    rows: Array = np.clip(starts[:-1] + np.minimum(step, steps - 1), 0, max(int(starts[-1]) - 1, 0))
    return rows


def _check_classes(labels: list[Array], classes: int, blank: int) -> None:
    for i, label in enumerate(labels):
        invalid = label[(label < 0) | (label >= classes) | (label == blank)]
        if len(invalid):
            raise OutOfRangeError(
                f"Label holds {invalid[0]} in sequence {i}; expected a class from 0 to {classes - 1} "
                f"that is not the blank, {blank}"
            )


@register_kernel("warpctc", "cpu", dtypes=FLOATS)
def warpctc(call: Call, context: Context) -> Any:
    """Loss = -log(sum of the probabilities of the paths of Label), and its derivative."""
    blank, padded = call.attr("blank"), call.has("LogitsLength")

    def run(context: Context, io: IO) -> None:
        labels = sequences(call, io, "Label", "LabelLength")
        logits = io.array("Logits")
        _check_classes(labels, logits.shape[-1], blank)
        steps = _steps(call, io, logits.shape[0])
        rows = None if padded else _rows(call)
        costs, derivative = ctc(logits if rows is None else logits[rows], steps, labels, blank)
        if io.has("Loss"):
            io.array("Loss")[...] = costs[:, None]
        if io.has("WarpCTCGrad"):
            out = io.array("WarpCTCGrad")
            if rows is None:
                out[...] = derivative
            else:
                inside = np.arange(len(rows))[:, None] < steps
                out[rows[inside]] = derivative[inside]

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
        step_weights = weight[:, None] if padded else np.repeat(weight, steps)[:, None]
        io.array("Logits@GRAD")[...] = derivative * step_weights

    return run
