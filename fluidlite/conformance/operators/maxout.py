from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, distinct, rand
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "maxout",
    samples=lambda: [
        Sample({"X": distinct(2, 6, 3, 4)}, {"groups": 2}, ("X",), name="two", dtypes=WIDE),
        Sample({"X": distinct(2, 6, 2, 2)}, {"groups": 3}, ("X",), name="three"),
        Sample({"X": distinct(1, 4, 1, 1)}, {"groups": 4}, ("X",), name="all"),
        Sample({"X": distinct(2, 3, 2, 6)}, {"groups": 2, "axis": -1}, ("X",), name="channels_last"),
        Sample({"X": distinct(1, 2, 3, 4)}, {"groups": 4, "axis": 3}, ("X",), name="axis_3", dtypes=WIDE),
        Sample({"X": distinct(2, 3, 2, 2)}, {"groups": 1}, ("X",), name="single", dtypes=("float32", "bfloat16")),
        Sample({"X": rand(0, 4, 2, 2)}, {"groups": 2}, name="empty"),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, groups = np.moveaxis(inputs["X"], attrs["axis"], 1), attrs["groups"]
    parts = [x[:, g::groups] for g in range(groups)]
    return {"Out": np.moveaxis(np.maximum.reduce(parts), 1, attrs["axis"])}
