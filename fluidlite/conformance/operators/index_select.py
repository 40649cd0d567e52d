from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, NUMBERS, WIDE, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples

register_samples(
    "index_select",
    reference=lambda inputs, attrs: {"Out": np.take(inputs["X"], inputs["Index"], attrs["dim"])},
    samples=lambda: [
        Sample({"X": rand(6, 3), "Index": np.array([4, 0, 4, 5])}, {}, ("X",), name="rows", dtypes=NUMBERS),
        Sample({"X": rand(3, 5), "Index": np.array([4, 0, 4])}, {"dim": 1}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(2, 4, 3), "Index": np.array([3, 3, 0, 1, 2], "int32")}, {"dim": -2}, ("X",), name="middle"),
        Sample({"X": rand(40, 3), "Index": np.array([2, 2])}, {"dim": 1}, ("X",), name="few_of_many"),
        Sample({"X": rand(5), "Index": np.array([2])}, {}, ("X",), name="vector"),
        Sample({"X": rand(0, 3), "Index": np.array([2])}, {"dim": 1}, name="empty"),
    ],
)


register_samples(
    "index_sample",
    reference=lambda inputs, attrs: {"Out": np.take_along_axis(inputs["X"], inputs["Index"], 1)},
    samples=lambda: [
        Sample({"X": rand(4, 6), "Index": ints(4, 3, high=6)}, {}, ("X",), name="samples", dtypes=NUMBERS),
        Sample(
            {"X": rand(2, 3), "Index": np.array([[1, 1, 1, 0], [2, 0, 2, 2]], "int32")},
            {},
            ("X",),
            name="repeated_int32",
            dtypes=WIDE,
        ),
        Sample({"X": rand(0, 3), "Index": ints(0, 2)}, {}, name="empty"),
    ],
)


@register_samples(
    "shard_index",
    samples=lambda: [
        Sample({"X": ints(9, 1, high=20)}, {"index_num": 20, "nshards": 2, "shard_id": 1}, name="second_half"),
        Sample(
            {"X": ints(9, 1, high=20)},
            {"index_num": 20, "nshards": 3, "shard_id": 0, "ignore_value": -7},
            name="ignored",
        ),
        Sample({"X": ints(2, 9, 1, high=7, dtype="int32")}, {"index_num": 7, "nshards": 1, "shard_id": 0}, name="one"),
        Sample({"X": ints(0, 1)}, {"index_num": 20, "nshards": 2, "shard_id": 1}, name="empty"),
    ],
)
def _reference_shard_index(inputs: Inputs, attrs: Attrs) -> Outputs:
    if not ((inputs["X"] >= 0) & (inputs["X"] < attrs["index_num"])).all():
        raise IndexError("an index that no shard has")
    shard_size = -(-attrs["index_num"] // attrs["nshards"])
    low = shard_size * attrs["shard_id"]
    x = inputs["X"]
    return {"Out": np.where((x >= low) & (x < low + shard_size), x - low, attrs["ignore_value"]).astype(x.dtype)}
