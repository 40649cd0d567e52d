from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import Attrs, Inputs, Outputs, rand, sigmoid
from fluidlite.conformance.samples import Sample, register_samples


def _sample(name: str, rows: int, units: int, **more: Any) -> Sample:
    inputs = {"X": rand(rows, 4 * units, low=-3, high=3), "C_prev": rand(rows, units, seed=1)}
    return Sample(inputs, {"forget_bias": 0.5}, ("X", "C_prev"), name=name, **more)


@register_samples(
    "lstm_unit",
    samples=lambda: [_sample("rows", 4, 5, dtypes=("float32", "float64", "float16")), _sample("one", 1, 1)],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    enter, keep, out, candidate = np.split(inputs["X"], 4, axis=1)
    cell = inputs["C_prev"] * sigmoid(keep + attrs["forget_bias"]) + sigmoid(enter) * np.tanh(candidate)
    return {"C": cell, "H": sigmoid(out) * np.tanh(cell)}
