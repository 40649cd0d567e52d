"""Samples and the reference of fluidlite.operators.warpctc: enumerates all paths."""

from __future__ import annotations

from itertools import groupby, pairwise, product
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Lods, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def enumerated(logits: Any, label: list[int], blank: int) -> tuple[float, Any]:
    """The cost of a label, and its derivative by logits, [steps, classes]."""
    if any(k == blank or not 0 <= k < logits.shape[1] for k in label):
        raise ValueError("a label is the blank, or no class")
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = powers / powers.sum(axis=1, keepdims=True)
    total, through = 0.0, np.zeros_like(chances)
    for path in product(range(logits.shape[1]), repeat=len(logits)):
        if [c for c, _ in groupby(path) if c != blank] == label:
            chance = float(np.prod([chances[t, c] for t, c in enumerate(path)]))
            total += chance
            for t, c in enumerate(path):
                through[t, c] += chance
    if total == 0 or not len(logits):
        return 0.0, np.zeros_like(chances)
    return -float(np.log(total)), chances - through / total


def _samples() -> list[Sample]:
    def ragged(
        name: str, classes: int, steps: tuple[int, ...], label: list[int], offsets: tuple[int, ...], **attrs: Any
    ) -> Sample:
        inputs = {"Logits": rand(steps[-1], classes, low=-2, high=2), "Label": np.array(label, "int32").reshape(-1, 1)}
        lod = {"Logits": (steps,), "Label": (offsets,)}
        return Sample(inputs, attrs, () if attrs.get("norm_by_times") else ("Logits",), lod, name, WIDE)

    padded = {"Logits": rand(4, 3, 3, low=-2, high=2), "Label": np.array([[0, 1], [1, 1], [0, 9]])}
    padded |= {"LogitsLength": np.array([4, 3, 2]), "LabelLength": np.array([2, 2, 1])}
    return [
        ragged("sequences", 3, (0, 5, 6, 10), [1, 1, 2, 2, 1], (0, 2, 3, 5)),
        ragged("no_labels_no_path_no_steps", 2, (0, 2, 4, 4), [1, 1], (0, 0, 2, 2)),
        ragged("by_times", 2, (0, 3), [1], (0, 1), norm_by_times=True),
        Sample(padded, {"blank": 2}, ("Logits",), name="padded", dtypes=WIDE),
    ]


@register_samples("warpctc", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    logits, label = inputs["Logits"], inputs["Label"]
    if not attrs["blank"] < logits.shape[-1]:
        raise ValueError("no reference")
    derivative, costs = np.zeros_like(logits), []
    if "LogitsLength" in inputs:
        sizes = zip(inputs["LogitsLength"].reshape(-1), inputs["LabelLength"].reshape(-1), strict=True)
        for i, (steps, labels) in enumerate(sizes):
            cost, derivative[:steps, i] = enumerated(logits[:steps, i], label[i, :labels].tolist(), attrs["blank"])
            costs.append(cost)
    else:
        for (a, b), (c, d) in zip(pairwise(lod["Logits"][0]), pairwise(lod["Label"][0]), strict=True):
            cost, derivative[a:b] = enumerated(logits[a:b], label[c:d].reshape(-1).tolist(), attrs["blank"])
            costs.append(cost)
    return {"WarpCTCGrad": derivative, "Loss": np.array(costs).reshape(-1, 1)}
