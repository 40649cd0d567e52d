from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "mvn",
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {}, ("X",), name="last", dtypes=EVERY),
        Sample({"X": rand(4, 3)}, {"axis": 0, "epsilon": 1e-3}, ("X",), name="first", dtypes=EVERY),
        Sample({"X": rand(2, 9, 5)}, {"axis": 1}, ("X",), name="middle", dtypes=WIDE),
        Sample({"X": rand(6)}, {"axis": -1}, ("X",), name="vector"),
        Sample({"X": rand(3, 40, low=998.3, high=1001.7)}, {}, name="far", dtypes=WIDE),
        Sample({"X": np.full((2, 3), 0.5, "float32")}, {}, name="of no variance"),
        Sample({"X": rand(0, 3)}, {}, name="no_rows"),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, axis = np.asarray(inputs["X"], "float64"), attrs["axis"]
    inverse = 1 / np.sqrt(x.var(axis, keepdims=True) + attrs["epsilon"])
    return {"Out": (x - x.mean(axis, keepdims=True)) * inverse, "Inverse": inverse}
