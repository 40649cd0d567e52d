from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples
from fluidlite.tensor.tensor_spec import Dims


def _pair(x: Dims, y: Dims) -> dict[str, Any]:
    return {"X": rand(*x), "Y": rand(*y, seed=1)}


_ANY = 9


@register_samples(
    "cross",
    samples=lambda: [
        Sample(_pair((4, 3), (4, 3)), {}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample(_pair((3, 3), (3, 3)), {}, ("X", "Y"), name="first"),
        Sample(_pair((3, 3, 2), (3, 3, 2)), {"dim": 1}, ("X", "Y"), name="dim1", dtypes=WIDE),
        Sample(_pair((3, 2, 3), (3, 2, 3)), {"dim": -1}, ("X", "Y"), name="last"),
        Sample(_pair((40, 3, 50), (40, 3, 50)), {}, name="large"),
        Sample({"X": ints(2, 3), "Y": ints(2, 3, seed=1)}, {}, name="int64", dtypes=("int64",)),
        Sample(_pair((0, 3), (0, 3)), {}, name="empty"),
    ],
)
def _reference_cross(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    axis = attrs["dim"] if attrs["dim"] != _ANY else x.shape.index(3)
    return {"Out": np.cross(x, inputs["Y"], axis=axis)}
