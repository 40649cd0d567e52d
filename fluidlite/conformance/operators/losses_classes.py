from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from fluidlite.conformance.operators.loss import hard_labels, picked, reference_cross_entropy
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


@register_samples(
    "cross_entropy2",
    samples=lambda: [replace(s, dtypes=EVERY) if s.name == "hard" else s for s in hard_labels()],
)
def _reference_two(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    match = picked(x, inputs["Label"], attrs["ignore_index"])
    cost = reference_cross_entropy(inputs, {**attrs, "soft_label": False})
    return {**cost, "MatchX": match.reshape(*x.shape[:-1], 1), "XShape": np.zeros((*x.shape, 0))}


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
