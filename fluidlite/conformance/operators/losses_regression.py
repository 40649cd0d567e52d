from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, away_from, rand
from fluidlite.conformance.samples import Sample, register_samples


def _samples_huber() -> list[Sample]:
    def inputs(*dims: int) -> dict[str, Any]:
        y = rand(*dims, low=-2, high=2, seed=1)
        return {"X": y + away_from(rand(*dims, low=-2, high=2, seed=2), -1, -0.5, 0.5, 1), "Y": y}

    return [
        Sample(inputs(9, 1), {"delta": 1.0}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample(inputs(9, 1), {"delta": 0.5}, ("X", "Y"), name="delta", dtypes=WIDE),
        Sample(inputs(3, 4, 2), {"delta": 1.0}, ("X", "Y"), name="rank3"),
        Sample(inputs(0, 1), {"delta": 1.0}, name="empty"),
    ]


@register_samples("huber_loss", samples=_samples_huber)
def _reference_huber(inputs: Inputs, attrs: Attrs) -> Outputs:
    residual, delta = inputs["Y"] - inputs["X"], attrs["delta"]
    far = delta * (np.abs(residual) - delta / 2)
    return {"Residual": residual, "Out": np.where(np.abs(residual) <= delta, residual**2 / 2, far)}


def _samples_smooth() -> list[Sample]:
    def inputs(*dims: int, weights: bool = False) -> dict[str, Any]:
        y = np.round(rand(*dims, low=-2, high=2, seed=1) * 8) / 8
        arrays = {"X": y + away_from(rand(*dims, low=-2, high=2, seed=2), -1, -0.25, 0.25, 1, gap=0.1), "Y": y}
        if weights:  # weights of 0 and 1 do not move distances to kinks
            arrays["InsideWeight"] = np.where(rand(*dims, seed=3) < 0, np.float32(0), np.float32(1))
            arrays["OutsideWeight"] = rand(*dims, low=0.5, high=2, seed=4)
        return arrays

    return [
        Sample(inputs(5, 4), {}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample(inputs(5, 4), {"sigma": 2.0}, ("X", "Y"), name="sigma", dtypes=WIDE),
        Sample(inputs(5, 4, weights=True), {"sigma": 2.0}, ("X", "Y"), name="weights", dtypes=EVERY),
        Sample(inputs(2, 3, 2, weights=True), {}, ("X", "Y"), name="rank3"),
        Sample(inputs(2, 70000, weights=True), {"sigma": 2.0}, name="blocks", dtypes=("float32", "float16")),
        Sample(inputs(3, 70), {}, name="wide", dtypes=("float32", "float16")),
        Sample(inputs(1, 1), {}, ("X", "Y"), name="one"),
        Sample(inputs(0, 4), {}, name="empty"),
        Sample(inputs(3, 0), {}, name="empty_rows"),
    ]


@register_samples("smooth_l1_loss", samples=_samples_smooth)
def _reference_smooth(inputs: Inputs, attrs: Attrs) -> Outputs:
    square = attrs["sigma"] ** 2
    diff = (inputs["X"] - inputs["Y"]) * inputs.get("InsideWeight", 1.0)
    distance = np.abs(diff)
    loss = np.where(distance < 1 / square, square * diff**2 / 2, distance - 0.5 / square)
    loss = loss * inputs.get("OutsideWeight", 1.0)
    rows = diff.shape[0]
    return {"Diff": diff, "Out": np.sum(loss.reshape(rows, int(np.prod(diff.shape[1:]))), axis=1).reshape(rows, 1)}


def _samples_kldiv() -> list[Sample]:
    def inputs(*dims: int) -> dict[str, Any]:
        target = rand(*dims, low=-0.4, high=1, seed=2)
        target = away_from(np.where(target < -0.2, np.float32(-0.25), target), 0)  # the derivative jumps at 0
        return {"X": rand(*dims, low=-3, high=0, seed=1), "Target": target}

    impossible = inputs(4, 5)
    impossible["Target"] = np.maximum(impossible["Target"], 0)
    impossible["X"][impossible["Target"] == 0] = -np.inf
    reductions = [
        Sample(inputs(4, 5), {"reduction": reduction}, ("X", "Target"), name=reduction, dtypes=EVERY)
        for reduction in ("none", "batchmean", "mean", "sum")
    ]
    return [
        *reductions,
        Sample(inputs(2, 3, 4), {}, ("X", "Target"), name="rank3", dtypes=WIDE),
        Sample(inputs(2, 3, 4), {"reduction": "batchmean"}, ("X", "Target"), name="rank3_batch"),
        Sample(inputs(300, 60), {}, name="large", dtypes=EVERY),
        Sample(inputs(300, 600), {"reduction": "sum"}, name="blocks", dtypes=("float32", "float16")),
        Sample(impossible, {"reduction": "sum"}, name="impossible"),
        Sample(inputs(6), {"reduction": "batchmean"}, ("X", "Target"), name="vector"),
        Sample(inputs(0, 3), {"reduction": "none"}, name="empty"),
        Sample(inputs(0, 3), {"reduction": "sum"}, name="empty_sum"),
        Sample(inputs(0, 3), {}, name="empty_mean"),
    ]


@register_samples("kldiv_loss", samples=_samples_kldiv)
def _reference_kldiv(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, target = inputs["X"], inputs["Target"]
    loss = np.asarray(
        [t * (np.log(t) - v) if t > 0 else 0.0 for v, t in zip(x.reshape(-1), target.reshape(-1), strict=True)]
    )
    if attrs["reduction"] == "none":
        return {"Loss": loss.reshape(x.shape)}
    count = {"mean": x.size, "batchmean": x.shape[0], "sum": 1}[attrs["reduction"]]
    return {"Loss": np.sum(loss).reshape(1) / max(count, 1)}
