"""Samples of sample_negatives, and samples and the reference of sample_logits: one row and one class at a time."""

from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples

register_samples(
    "sample_negatives", samples=lambda: [Sample({"Labels": ints(3, 2, high=9)}, {"num_samples": 4, "num_classes": 9})]
)


def _samples() -> list[Sample]:
    labels = ints(3, 2, high=6)
    samples = np.concatenate((labels, np.array([[1, 0, 4]] * 3)), axis=1)
    samples[:, 2] = labels[:, 1]  # a hit in each row
    inputs = {
        "Logits": rand(3, 6),
        "Labels": labels,
        "Samples": samples,
        "Probabilities": rand(3, 5, low=0.1, high=0.9, seed=2),
    }
    return [
        Sample(inputs, {"remove_accidental_hits": False}, ("Logits",), name="all", dtypes=WIDE),
        Sample(inputs, {}, name="hits", dtypes=WIDE),
    ]


@register_samples("sample_logits", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    logits, true = inputs["Logits"], inputs["Labels"].shape[1]
    scores = np.zeros(inputs["Samples"].shape)
    for i, samples in enumerate(inputs["Samples"]):
        for j, k in enumerate(samples):
            scores[i, j] = logits[i, k] - np.log(inputs["Probabilities"][i, j])
            if attrs["remove_accidental_hits"] and j >= true and k in samples[:true]:
                scores[i, j] -= float(np.float32(1e20))
    return {"SampledLogits": scores, "SampledLabels": np.tile(np.arange(true), (len(scores), 1))}
