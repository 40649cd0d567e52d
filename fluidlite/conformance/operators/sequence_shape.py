from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import MIXED, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples

register_samples(
    "sequence_reshape",
    reference=lambda inputs, attrs: {"Out": inputs["X"].reshape(-1, attrs["new_dim"])},
    samples=lambda: [
        Sample({"X": rand(6, 2)}, {"new_dim": 4}, ("X",), {"X": ((0, 2, 2, 6),)}, name="wider", dtypes=WIDE),
        Sample({"X": rand(1, 6)}, {"new_dim": 2}, ("X",), {"X": ((0, 1),)}, name="narrower"),
    ],
)


@register_samples(
    "lod_reset",
    samples=lambda: [
        Sample({"X": rand(5, 2)}, {"target_lod": [0, 2, 5]}, ("X",), name="attribute", dtypes=WIDE),
        Sample({"X": rand(5, 2), "Y": rand(5, 1)}, {}, ("X",), {"Y": ((0, 2), (0, 1, 5))}, name="lod"),
        Sample({"X": rand(5, 2), "TargetLod": np.array([0, 0, 5])}, {}, ("X",), name="tensor", dtypes=MIXED),
        Sample({"X": rand(1, 2)}, {"target_lod": [0, 1]}, ("X",), {"X": ((0, 1, 1),)}, name="one"),
    ],
)
def _reference_reset(inputs: Inputs, attrs: Attrs) -> Outputs:
    return {"Out": inputs["X"]}
