from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "logsumexp",
    samples=lambda: [
        Sample({"X": rand(3, 4)}, {}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(3, 4)}, {"dim": [-1], "keep_dim": True}, ("X",), name="rows", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4)}, {"dim": [0, 2]}, ("X",), name="two"),
        Sample({"X": rand(2, 3)}, {"reduce_all": True}, ("X",), name="all", dtypes=WIDE),
        Sample({"X": rand(2, 3)}, {"reduce_all": True, "keep_dim": True}, ("X",), name="all_kept"),
        Sample({"X": rand()}, {"reduce_all": True}, ("X",), name="rank0"),
        Sample({"X": rand()}, {"reduce_all": True, "keep_dim": True}, ("X",), name="rank0_kept"),
        Sample({"X": rand(4, 3, low=500, high=900)}, {"dim": [1]}, name="large_numbers"),
        Sample({"X": rand(3, 0)}, {}, name="empty"),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    axes = None if attrs["reduce_all"] else tuple(attrs["dim"])
    result = np.logaddexp.reduce(inputs["X"], axes, keepdims=attrs["keep_dim"])
    return {"Out": np.asarray(result).reshape(np.shape(result) or (1,))}
