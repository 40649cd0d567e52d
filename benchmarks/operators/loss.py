"""Losses and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operators.case import Array, Case, Inputs, Numbers, functional, side, square, torch

_ONE, _HALF = np.float32(1), np.float32(0.5)


def _classified(x: str = "X") -> Callable[[Numbers, int], Inputs]:
    def make(numbers: Numbers, size: int) -> Inputs:
        n = min(side(size), 1000)
        return {x: numbers.classes(size // n, n), "Label": numbers.ints(n, size // n, 1)}

    return make


def _soft(numbers: Numbers, size: int) -> Inputs:
    n = min(side(size), 1000)
    return {"X": numbers.classes(size // n, n), "Label": numbers.classes(size // n, n)}


def _columns(**kinds: str) -> Callable[[Numbers, int], Inputs]:
    """Columns [size, 1]: "n" normal, "p" of probabilities, "b" 0 or 1, "s" 1 or -1."""

    def make(numbers: Numbers, size: int) -> Inputs:
        kind: dict[str, Callable[[], Array]] = {
            "n": lambda: numbers.normal(size, 1),
            "p": lambda: numbers.uniform(0.01, 0.99, size, 1),
            "b": lambda: numbers.bools(size, 1).astype(np.float32),
            "s": lambda: numbers.bools(size, 1) * np.float32(2) - _ONE,
        }
        return {slot: kind[name]() for slot, name in kinds.items()}

    return make


def _negatives(numbers: Numbers, size: int) -> Inputs:
    rows = max(size // 1024, 16)
    labels, drawn = numbers.ints(1000, rows, 1), numbers.ints(1000, 1, 63)
    return {"Logits": numbers.normal(rows, 1000), "Labels": labels,
            "Samples": np.concatenate((labels, np.tile(drawn, (rows, 1))), 1),
            "Probabilities": numbers.uniform(0.01, 0.99, rows, 64)}  # fmt: skip


def _truth_matrix(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "Label": numbers.bools(n, n).astype(np.float32)}


def _centres(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "Label": numbers.ints(64, n, 1), "Centers": numbers.normal(64, n),
            "CenterUpdateRate": numbers.one(0.1)}  # fmt: skip


def _teacher(numbers: Numbers, size: int) -> Inputs:
    label = np.where(numbers.bools(size, 1), np.float32(-1), numbers.uniform(0, 2, size, 1))
    return {"X": numbers.normal(size, 1), "Label": label}


def _guesses(numbers: Numbers, size: int) -> Inputs:
    rows = max(size // 8, 16)
    return {"Out": numbers.positive(rows, 4), "Indices": numbers.ints(10, rows, 4), "Label": numbers.ints(10, rows, 1)}


def _scores(numbers: Numbers, size: int) -> Inputs:
    rows = max(size // 4, 16)
    right = numbers.uniform(0, 0.99, rows, 1)
    zeros = np.zeros((1, 4096), np.int64)
    return {"Predict": np.concatenate((_ONE - right, right), 1), "Label": numbers.ints(2, rows, 1), "StatPos": zeros,
            "StatNeg": zeros.copy()}  # fmt: skip


def _tags(numbers: Numbers, size: int) -> Inputs:
    return {"Predictions": numbers.ints(20, size), "Labels": numbers.ints(20, size)}


def _decisions(numbers: Numbers, size: int) -> Inputs:
    rows = max(size // 4, 16)
    return {"MaxProbs": numbers.positive(rows, 1), "Indices": numbers.ints(20, rows, 1, dtype="int32"),
            "Labels": numbers.ints(20, rows, 1, dtype="int32")}  # fmt: skip


def _huber(x: Array, y: Array) -> Any:
    r = np.abs(y - x)
    return np.where(r <= 1, _HALF * r * r, r - _HALF)


def _modified(x: Array, y: Array) -> Any:
    v = x * (2 * y - _ONE)
    return np.where(v < -1, -4 * v, np.square(np.maximum(0, _ONE - v)))


def _smooth(x: Array, y: Array) -> Any:
    return _huber(x, y).sum(1, keepdims=True)


def _logistic(x: Array, label: Array) -> Any:
    return np.maximum(x, 0) - x * label + np.log1p(np.exp(-np.abs(x)))


def _at(x: Any, label: Any) -> Any:
    return -np.log(np.take_along_axis(x, label, 1))


_X: dict[str, Any] = {"grads": ("X",)}

CASES = [
    Case("cross_entropy", _classified(), _at, lambda x, i: -torch.log(torch.gather(x, 1, i)), {}, ("X",), ("Y",)),
    Case("cross_entropy", _soft, lambda x, p: -(p * np.log(x)).sum(1), lambda x, p: -(p * torch.log(x)).sum(1),
         {"soft_label": True}, ("X",), ("Y",), name="of soft labels"),
    Case("cross_entropy2", _classified(), _at, lambda x, i: -torch.log(torch.gather(x, 1, i)), {}, ("X",), ("Y",)),
    Case("bpr_loss", _classified(), None, None, {}, ("X",), ("Y",)),
    Case("sigmoid_cross_entropy_with_logits", _truth_matrix, _logistic,
         lambda x, y: functional.binary_cross_entropy_with_logits(x, y, reduction="none"), **_X),
    Case("hinge_loss", _columns(Logits="n", Labels="b"), lambda x, y: np.maximum(0, _ONE - (2 * y - _ONE) * x),
         lambda x, y: torch.relu(1 - (2 * y - 1) * x), {}, ("Logits",), ("Loss",)),
    Case("huber_loss", _columns(X="n", Y="n"), _huber, lambda x, y: functional.huber_loss(x, y, reduction="none"),
         {"delta": 1.0}, ("X", "Y")),
    Case("modified_huber_loss", _columns(X="n", Y="b"), _modified, None, {}, ("X",)),
    Case("smooth_l1_loss", square("X", "Y"), _smooth,
         lambda x, y: functional.smooth_l1_loss(x, y, reduction="none").sum(1), {}, ("X", "Y")),
    Case("log_loss", _columns(Predicted="p", Labels="b"),
         lambda p, y: -y * np.log(p + np.float32(1e-4)) - (1 - y) * np.log(1 - p + np.float32(1e-4)),
         lambda p, y: functional.binary_cross_entropy(p, y, reduction="none"), {"epsilon": 1e-4}, ("Predicted",),
         ("Loss",), tolerance=2e-2),
    Case("kldiv_loss", lambda numbers, size: {"X": numbers.normal(side(size), side(size)),
                                              "Target": numbers.positive(side(size), side(size))},
         lambda x, t: t * (np.log(t) - x), lambda x, t: functional.kl_div(x, t, reduction="none"),
         {"reduction": "none"}, ("X",), ("Loss",)),
    Case("kldiv_loss", lambda numbers, size: {"X": numbers.normal(side(size), side(size)),
                                              "Target": numbers.positive(side(size), side(size))},
         lambda x, t: (t * (np.log(t) - x)).mean(), lambda x, t: functional.kl_div(x, t, reduction="none").mean(),
         {"reduction": "mean"}, ("X",), ("Loss",), name="of all", tolerance=2e-2),
    Case("margin_rank_loss", _columns(X1="n", X2="n", Label="s"),
         lambda a, b, y: np.maximum(0, np.float32(0.1) - y * (a - b)),
         lambda a, b, y: functional.margin_ranking_loss(a, b, y, 0.1, reduction="none"), {"margin": 0.1}, ("X1", "X2")),
    Case("rank_loss", _columns(Label="b", Left="n", Right="n"),
         lambda y, a, b: np.log1p(np.exp(a - b)) - y * (a - b),
         lambda y, a, b: functional.softplus(a - b) - y * (a - b),
         {}, ("Left", "Right")),
    Case("sample_logits", _negatives, None, None, {"remove_accidental_hits": False}, ("Logits",), ("SampledLogits",)),
    Case("teacher_student_sigmoid_loss", _teacher, None, None, {}, ("X",), ("Y",)),
    Case("center_loss", _centres, None, None, {"cluster_num": 64, "need_update": True}, ("X",), ("Loss",)),
    Case("label_smooth", lambda numbers, size: {"X": numbers.classes(side(size), side(size))},
         lambda x: x * np.float32(0.9) + np.float32(0.1 / x.shape[1]), lambda x: x * 0.9 + 0.1 / x.shape[1],
         {"epsilon": 0.1}, ("X",)),
    Case("accuracy", _guesses, lambda o, i, y: (i == y).any(1).mean(dtype=np.float32),
         lambda o, i, y: (i == y).any(1).float().mean(), outputs=("Accuracy",)),
    Case("auc", _scores, None, None, {"num_thresholds": 4095, "slide_steps": 0}, outputs=("AUC",)),
    Case("mean_iou", _tags, None, None, {"num_classes": 20}, outputs=("OutMeanIou", "OutWrong", "OutCorrect")),
    Case("precision_recall", _decisions, None, None, {"class_number": 20},
         outputs=("BatchMetrics", "AccumMetrics", "AccumStatesInfo")),
]  # fmt: skip
