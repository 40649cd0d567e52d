"""Samples of sample_classes, and samples and the reference of nce: one row and one class at a time."""

from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, ints, rand, sigmoid
from fluidlite.conformance.samples import Sample, register_samples

register_samples(
    "sample_classes",
    samples=lambda: [
        Sample({"Like": rand(3, 2)}, {"num": 4, "num_total_classes": 7}, name="uniform"),
        Sample({"Like": rand(3, 2)}, {"num": 4, "num_total_classes": 7, "sampler": "log_uniform"}, name="log_uniform"),
        Sample(
            {"Like": rand(3, 2), "Probs": np.array([0.5, 0, 0.5], "float32")},
            {"num": 4, "num_total_classes": 3, "sampler": "custom_dist"},
            name="custom",
        ),
    ],
)


def _samples() -> list[Sample]:
    def case(name: str, sampler: str, true: int, *more: str) -> Sample:
        rows, total = 4, 6
        inputs = {"Input": rand(rows, 3), "Label": ints(rows, true, high=total), "Weight": rand(total, 3, seed=1)}
        if "Bias" in more:
            inputs["Bias"] = rand(total, 1, seed=2)
        if "SampleWeight" in more:
            inputs["SampleWeight"] = rand(rows, 1, low=0.5, high=2, seed=3)
        inputs["Samples"] = ints(rows, 5, high=total, seed=4)
        if sampler == "custom_dist":
            inputs["CustomDistProbs"] = np.array([0.1, 0.3, 0.2, 0.05, 0.25, 0.1], "float32")
        grads = ("Input", "Weight", *(["Bias"] if "Bias" in more else []))
        return Sample(inputs, {"num_total_classes": total, "sampler": sampler}, grads, name=name, dtypes=WIDE)

    return [
        case("uniform", "uniform", 1, "Bias", "SampleWeight"),
        case("two_true", "log_uniform", 2),
        case("custom", "custom_dist", 1, "Bias"),
    ]


@register_samples("nce", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, w, total, sampler = inputs["Input"], inputs["Weight"], attrs["num_total_classes"], attrs["sampler"]
    if (sampler == "custom_dist") != ("CustomDistProbs" in inputs):
        raise ValueError("no reference")
    costs = np.zeros((len(x), 1))
    for i, row in enumerate(x):
        for slot in ("Label", "Samples"):
            for k in inputs[slot][i]:
                score = row @ w[k] + (inputs["Bias"].reshape(-1)[k] if "Bias" in inputs else 0)
                o = sigmoid(score)
                chance = {"uniform": 1 / total, "log_uniform": np.log((k + 2) / (k + 1)) / np.log(total + 1)}
                b = chance[sampler] if sampler in chance else inputs["CustomDistProbs"][k]
                b = b * inputs["Samples"].shape[1]
                costs[i] -= np.log((o if slot == "Label" else b) / (o + b))
        if "SampleWeight" in inputs:
            costs[i] *= inputs["SampleWeight"].reshape(-1)[i]
    return {"Cost": costs}
