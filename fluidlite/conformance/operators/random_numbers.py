from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples

# Samples of random operators are only examples of calls; there is no reference.
_LIKE_SAMPLES = [Sample({"Input": np.zeros((5, 2), "float32")}, {"shape": [-1, 3]}, name="rows")]


register_samples(
    "uniform_random",
    samples=[
        Sample({}, {"shape": [2, 3]}, name="plain"),
        Sample({}, {"shape": [4, 3], "diag_num": 3, "diag_step": 3, "diag_val": 2.0}, name="diagonal"),
    ],
)


register_samples("uniform_random_batch_size_like", samples=_LIKE_SAMPLES)
register_samples("gaussian_random_batch_size_like", samples=_LIKE_SAMPLES)
register_samples("randint", samples=[Sample({}, {"shape": [2, 3], "low": 0, "high": 10}, name="digits")])


register_samples(
    "randperm", samples=[Sample({}, {"n": 7}, name="int64"), Sample({}, {"n": 7, "dtype": "int32"}, name="int32")]
)


@register_samples(
    "sampling_id",
    samples=lambda: [
        Sample({"X": np.eye(5, dtype="float32")[[2, 0, 4]]}, {}, name="certain", dtypes=EVERY),
        Sample({"X": np.full((3, 4), 0.25, "float32")}, {"min": 0.5, "max": 0.75}, name="third", dtypes=EVERY),
        Sample({"X": np.full((3, 4), 0.25, "float32")}, {"min": -1.0, "max": 0.25}, name="first"),
        Sample({"X": np.full((2, 4), 0.125, "float32")}, {"min": 0.75}, lod={"X": ((0, 1, 2),)}, name="short_of_one"),
        Sample({"X": rand(0, 4)}, {}, name="empty"),
    ],
)
def _reference_sampling_id(inputs: Inputs, attrs: Attrs) -> Outputs:
    """The class of each row; in the samples all random numbers from min to max give the same one."""
    sums = np.cumsum(inputs["X"], axis=1)
    out = [min(int((row <= (attrs["min"] + attrs["max"]) / 2).sum()), row.size - 1) for row in sums]
    return {"Out": np.asarray(out, "int64")}
