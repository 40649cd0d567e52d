from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import NUMBERS, WIDE, Attrs, Inputs, Outputs, pair
from fluidlite.conformance.samples import Sample, register_samples

_ANY_DIM = 9


@register_samples(
    "cross",
    samples=lambda: [
        Sample(pair((4, 3), (4, 3)), {}, ("X", "Y"), name="rows", dtypes=NUMBERS),
        Sample(pair((3, 3), (3, 3)), {}, ("X", "Y"), name="first"),
        Sample(pair((3, 3, 2), (3, 3, 2)), {"dim": 1}, ("X", "Y"), name="dim1", dtypes=WIDE),
        Sample(pair((3, 2, 3), (3, 2, 3)), {"dim": -1}, ("X", "Y"), name="last"),
        Sample(pair((40, 3, 50), (40, 3, 50)), {}, name="large"),
        Sample(pair((0, 3), (0, 3)), {}, name="empty"),
    ],
)
def _reference_cross(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    axis = attrs["dim"] if attrs["dim"] != _ANY_DIM else x.shape.index(3)
    return {"Out": np.cross(x, inputs["Y"], axis=axis)}
