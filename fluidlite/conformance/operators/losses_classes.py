from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "bpr_loss",
    samples=lambda: [
        Sample({"X": rand(5, 4, low=-3, high=3), "Label": ints(5, 1, high=4)}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(5, 2), "Label": ints(5, 1, high=2, dtype="int32")}, {}, ("X",), name="pairs_int32"),
        Sample({"X": rand(2, 3, 6), "Label": ints(2, 3, 1, high=6)}, {}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(3, 40, low=-300, high=300), "Label": ints(3, 1, high=40)}, {}, name="far"),
        Sample({"X": rand(300, 300), "Label": ints(300, 1, high=300)}, {}, name="large"),
        Sample({"X": rand(0, 4), "Label": ints(0, 1)}, {}, name="empty"),
    ],
)
def _reference_bpr(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, label = inputs["X"], inputs["Label"]
    classes = x.shape[-1]
    rows = zip(x.reshape(prod(x.shape[:-1]), classes), label.reshape(-1), strict=True)
    losses = [np.mean(np.logaddexp(0, np.delete(row, c) - row[c])) for row, c in rows]
    return {"Y": np.asarray(losses, "float64").reshape(label.shape)}


def _samples_two() -> list[Sample]:
    def p(*dims: int) -> Any:
        return rand(*dims, low=0.1, high=0.9)

    certain = np.asarray([[0, 1], [1, 0]], "float32")
    return [
        Sample({"X": p(5, 4), "Label": ints(5, 1, high=4)}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": p(5, 4), "Label": np.array([[1], [-100], [3], [0], [-100]])}, {}, ("X",), name="ignored"),
        Sample({"X": p(5, 4), "Label": ints(5, 1, high=4)}, {"ignore_index": 2}, ("X",), name="ignore_index"),
        Sample({"X": p(2, 3, 4), "Label": ints(2, 3, high=4, dtype="int32")}, {}, ("X",), name="short_int32"),
        Sample({"X": certain, "Label": ints(2, 1, high=1)}, {}, name="zero_probability"),
        Sample({"X": p(0, 4), "Label": ints(0, 1)}, {}, name="empty"),
    ]


@register_samples("cross_entropy2", samples=_samples_two)
def _reference_two(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, label = inputs["X"], inputs["Label"]
    table = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    match = [0.0 if c == attrs["ignore_index"] else table[i, c] for i, c in enumerate(label.reshape(-1))]
    with np.errstate(divide="ignore"):
        cost = np.minimum(-np.log(np.asarray(match, "float64")), 1e20)
    cost[label.reshape(-1) == attrs["ignore_index"]] = 0
    return {
        "Y": cost.reshape(label.shape),
        "MatchX": np.asarray(match, "float64").reshape(*x.shape[:-1], 1),
        "XShape": np.zeros((*x.shape, 0)),
    }


def _samples_center() -> list[Sample]:
    def inputs(rows: int, **label: Any) -> dict[str, Any]:
        return {
            "X": rand(rows, 3),
            "Label": ints(rows, 1, high=4, seed=2, **label),
            "Centers": rand(5, 3, seed=1),
            "CenterUpdateRate": np.asarray([0.1], "float32"),
        }

    attrs = {"cluster_num": 5, "need_update": True}
    return [
        Sample(inputs(7), attrs, ("X",), name="update", dtypes=WIDE),
        Sample(inputs(7, dtype="int32"), attrs, name="int32"),
        Sample(inputs(7), {**attrs, "need_update": False}, ("X",), name="fixed"),
        Sample(inputs(0), attrs, name="empty"),
    ]


@register_samples("center_loss", samples=_samples_center)
def _reference_center(inputs: Inputs, attrs: Attrs) -> Outputs:
    label, centers = inputs["Label"].reshape(-1), inputs["Centers"].copy()
    diff = inputs["X"] - centers[label]
    if attrs["need_update"]:
        for c in range(len(centers)):
            centers[c] += inputs["CenterUpdateRate"][0] * diff[label == c].sum(0) / (1 + (label == c).sum())
    return {"CentersOut": centers, "SampleCenterDiff": diff, "Loss": (diff**2).sum(1, keepdims=True) / 2}
