from __future__ import annotations

from math import inf

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, distinct, rand
from fluidlite.conformance.samples import Sample, register_samples
from fluidlite.tensor.tensor_spec import Dims


def _case(name: str, x: Dims, y: Dims, p: float | None = None, dtypes: tuple[str, ...] = ("float32",)) -> Sample:
    inputs = {"X": distinct(*x), "Y": distinct(*y, seed=1) * np.float32(0.75) + np.float32(0.1)}
    attrs = {} if p is None else {"p": p}
    return Sample(inputs, attrs, ("X", "Y"), name=name, dtypes=dtypes)


@register_samples(
    "dist",
    samples=lambda: [
        _case("plain", (3, 4), (3, 4), None, EVERY),
        _case("one", (3, 4), (3, 4), 1.0, WIDE),
        _case("three", (2, 3), (2, 3), 3.0, WIDE),
        _case("half", (2, 3), (2, 3), 0.5),
        _case("greatest", (3, 4), (3, 4), inf),
        _case("least", (3, 4), (3, 4), -inf),
        _case("count", (3, 4), (3, 4), 0.0),
        _case("row", (3, 4), (4,)),
        _case("both", (2, 1, 3), (4, 1), 3.0),
        Sample({"X": rand(3), "Y": rand(3)}, {"p": 3.0}, name="equal"),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    return {"Out": np.asarray([np.linalg.norm(np.ravel(inputs["X"] - inputs["Y"]), attrs["p"])])}
