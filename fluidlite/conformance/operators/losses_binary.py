from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, away_from, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _pairs(scores: str, labels: str) -> Callable[..., list[Sample]]:
    """Return samples of scores and labels: ordinary dims and edge cases; labels of 0, of 1 and between."""

    def samples(*attrs: Attrs, low: float = -3.0, high: float = 3.0, avoid: Any = ()) -> list[Sample]:
        def inputs(*dims: int) -> dict[str, Any]:
            x = away_from(rand(*dims, low=low, high=high, seed=3), *avoid)
            return {scores: x, labels: np.asarray(ints(*dims, high=2, seed=4), "float32")}

        first, *rest = attrs or ({},)
        both = (scores, labels)
        soft = inputs(6, 1)
        soft[labels] = soft[labels] * np.float32(0.75) + np.float32(0.125)
        return [
            Sample(inputs(7, 1), first, both, name="rows", dtypes=EVERY),
            *(Sample(inputs(5, 1), each, both, name=f"attrs{i}") for i, each in enumerate(rest, 1)),
            Sample(inputs(3, 4, 2), first, both, name="rank3", dtypes=WIDE),
            Sample(soft, first, both, name="soft", dtypes=EVERY),
            Sample(inputs(1), first, both, name="one"),
            Sample(inputs(0, 1), first, name="empty"),
        ]

    return samples


register_samples(
    "hinge_loss",
    reference=lambda inputs, attrs: {"Loss": np.maximum(0, 1 - (2 * inputs["Labels"] - 1) * inputs["Logits"])},
    samples=lambda: _pairs("Logits", "Labels")(avoid=(-1, 1)),
)


@register_samples(
    "log_loss",
    samples=lambda: _pairs("Predicted", "Labels")({"epsilon": 1e-4}, {"epsilon": 0.2}, low=0.1, high=0.9),
)
def _reference_log_loss(inputs: Inputs, attrs: Attrs) -> Outputs:
    p, label, e = inputs["Predicted"], inputs["Labels"], attrs["epsilon"]
    return {"Loss": -label * np.log(p + e) - (1 - label) * np.log(1 - p + e)}


@register_samples("modified_huber_loss", samples=lambda: _pairs("X", "Y")(avoid=(-1, 1)))
def _reference_modified_huber(inputs: Inputs, attrs: Attrs) -> Outputs:
    value = inputs["X"] * (2 * inputs["Y"] - 1)
    loss = [-4 * v if v < -1 else (1 - v) ** 2 if v < 1 else 0.0 for v in value.reshape(-1)]
    return {"IntermediateVal": value, "Out": np.reshape(loss, value.shape)}


def _samples_rank() -> list[Sample]:
    def inputs(*dims: int, far: float = 1.0) -> dict[str, Any]:
        label = np.asarray(ints(*dims, high=3) / 2, "float32")
        return {"Label": label, "Left": far * rand(*dims, seed=1), "Right": far * rand(*dims, seed=2)}

    return [
        Sample(inputs(7, 1), {}, ("Left", "Right", "Label"), name="rows", dtypes=EVERY),
        Sample(inputs(6), {}, ("Left", "Right", "Label"), name="vector"),
        Sample(inputs(6, 1, far=200.0), {}, name="far"),
        Sample(inputs(0, 1), {}, name="empty"),
    ]


@register_samples("rank_loss", samples=_samples_rank)
def _reference_rank(inputs: Inputs, attrs: Attrs) -> Outputs:
    apart = inputs["Left"] - inputs["Right"]
    return {"Out": np.logaddexp(0, apart) - inputs["Label"] * apart}


def _samples_margin_rank() -> list[Sample]:
    def inputs(*dims: int) -> dict[str, Any]:
        label = np.asarray(2 * ints(*dims, high=2) - 1, "float32")
        apart = away_from(rand(*dims, low=-2, high=2, seed=1), -0.5, 0, 0.5)
        x2 = np.asarray(ints(*dims, high=9) / 4, "float32")
        return {"X1": x2 + apart, "X2": x2, "Label": label}

    each = ("X1", "X2", "Label")
    return [
        Sample(inputs(9, 1), {}, each, name="rows", dtypes=WIDE),
        Sample(inputs(9, 1), {"margin": 0.5}, each, name="margin", dtypes=EVERY),
        Sample(inputs(3, 4), {"margin": 0.5}, each, name="matrix"),
        Sample(inputs(0, 1), {}, name="empty"),
    ]


@register_samples("margin_rank_loss", samples=_samples_margin_rank)
def _reference_margin_rank(inputs: Inputs, attrs: Attrs) -> Outputs:
    loss = attrs["margin"] - inputs["Label"] * (inputs["X1"] - inputs["X2"])
    return {"Activated": np.heaviside(loss, 0.0), "Out": np.maximum(loss, 0.0)}


def _samples_teacher_student() -> list[Sample]:
    label = np.asarray([[-2], [-1], [0], [0.25], [0.75], [1], [1.5], [2]], "float32")
    value = np.asarray([[-2], [-1.5], [-0.5], [0.25], [0.75], [1.25], [1.5], [1.75]], "float32")
    x = rand(8, 1, low=-3, high=3, seed=2)
    bounds = {"soft_max_up_bound": 4.0, "soft_max_lower_bound": -4.0}
    return [
        Sample({"X": x, "Label": label}, {}, ("X",), name="labels", dtypes=EVERY),
        Sample({"X": x, "Label": value}, {}, ("X", "Label"), name="values", dtypes=EVERY),
        Sample({"X": x, "Label": label}, bounds, ("X",), name="bounds"),
        Sample({"X": rand(0, 1), "Label": rand(0, 1)}, {}, name="empty"),
    ]


@register_samples("teacher_student_sigmoid_loss", samples=_samples_teacher_student)
def _reference_teacher_student(inputs: Inputs, attrs: Attrs) -> Outputs:
    def loss(x: float, label: float) -> float:
        def cross_entropy(truth: float) -> float:
            return float(np.logaddexp(0, x) - x * truth)

        if label < 0:
            return cross_entropy(0.0 if label < -1 else 1.0)
        click = 0.0 if label < 1 else 1.0
        return cross_entropy(click) + cross_entropy(label - click)

    x = inputs["X"]
    values = [loss(*pair) for pair in zip(x.reshape(-1), inputs["Label"].reshape(-1), strict=True)]
    return {"Y": np.reshape(values, x.shape)}


def _samples_sigmoid() -> list[Sample]:
    x, label = rand(5, 7, low=-4, high=4), np.asarray(ints(5, 7, low=-1, high=2, seed=1), "float32")
    soft = {"X": x, "Label": rand(5, 7, low=-2, high=2, seed=1)}
    far = {"X": np.asarray([[-300, 300], [300, -300]], "float32"), "Label": np.asarray([[0, 1], [0, 1]], "float32")}
    return [
        Sample({"X": x, "Label": label}, {}, ("X",), name="labels", dtypes=EVERY),
        Sample({"X": x, "Label": label}, {"ignore_index": -1}, ("X",), name="ignored", dtypes=WIDE),
        Sample(
            {"X": x, "Label": label}, {"ignore_index": -1, "normalize": True}, ("X",), name="normalized", dtypes=EVERY
        ),
        Sample(soft, {}, ("X", "Label"), name="soft", dtypes=EVERY),
        Sample(soft, {"normalize": True}, ("X", "Label"), name="soft_normalized", dtypes=WIDE),
        *(Sample(soft, {"ignore_index": i}, ("X", "Label"), name=f"fraction{i}") for i in (-1, 0, 1)),
        Sample({"X": x, "Label": np.ones_like(x)}, {"ignore_index": 1, "normalize": True}, ("X",), name="none_left"),
        Sample(far, {}, name="far"),
        Sample({"X": rand(4, seed=1), "Label": rand(4)}, {"normalize": True}, ("X",), name="vector"),
        Sample({"X": rand(0, 3), "Label": rand(0, 3)}, {"normalize": True}, name="empty"),
    ]


@register_samples("sigmoid_cross_entropy_with_logits", samples=_samples_sigmoid)
def _reference_sigmoid(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, label = inputs["X"], inputs["Label"]
    loss = np.logaddexp(0, x) - x * label
    loss[np.trunc(label) == attrs["ignore_index"]] = 0
    if attrs["normalize"]:
        loss = loss / max(np.count_nonzero(label != attrs["ignore_index"]), 1e-5)
    return {"Out": loss}
