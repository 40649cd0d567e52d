from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import COPIED, EVERY, WIDE, Attrs, Inputs, Outputs, ints, rand, stated
from fluidlite.conformance.samples import Sample, register_samples

_TIMES = ("ExpandTimes", "expand_times_tensor")


@register_samples(
    "expand",
    samples=lambda: [
        Sample({"X": rand(2, 3)}, {"expand_times": [2, 1]}, ("X",), name="rows", dtypes=COPIED),
        Sample({"X": rand(2, 3, 1)}, {"expand_times": [1, 2, 2]}, ("X",), name="rank3", dtypes=EVERY),
        Sample({"X": rand(3, 1)}, {"expand_times": [1, 5]}, ("X",), name="columns", dtypes=WIDE),
        Sample({"X": rand(1, 4)}, {"expand_times": [3, 1]}, ("X",), name="one_row"),
        Sample({"X": rand(2, 3)}, {"expand_times": [1, 1]}, ("X",), name="once"),
        Sample({"X": rand(2, 1, 3, 1)}, {"expand_times": [2, 3, 1, 4]}, ("X",), name="rank4"),
        Sample({"X": rand(4)}, {"expand_times": [3]}, ("X",), name="vector"),
        Sample({"X": rand()}, {"expand_times": []}, ("X",), name="rank0"),
        Sample({"X": rand(70, 33)}, {"expand_times": [2, 3]}, name="long"),
        Sample({"X": rand(3, 2)}, {"expand_times": [1, 7]}, ("X",), name="short", dtypes=WIDE),
        Sample({"X": rand(2, 3, 2)}, {"expand_times": [2, 1, 9]}, ("X",), name="short_twice"),
        Sample({"X": rand(3)}, {"expand_times": [4]}, ("X",), name="short_row"),
        Sample({"X": rand(2, 3), "ExpandTimes": np.asarray([2, 3], "int32")}, {}, ("X",), name="by_tensor"),
        Sample(
            {"X": rand(2, 3), "expand_times_tensor": [np.asarray([2], "int32"), np.asarray([3], "int64")]},
            {"expand_times": [-1, 3]},
            ("X",),
            name="by_list",
        ),
        Sample({"X": rand(0, 3)}, {"expand_times": [2, 2]}, name="empty"),
    ],
)
def _reference_expand(inputs: Inputs, attrs: Attrs) -> Outputs:
    return {"Out": np.tile(inputs["X"], stated(inputs, attrs, "expand_times", *_TIMES))}


@register_samples(
    "expand_as",
    samples=lambda: [
        Sample({"X": rand(2, 3), "target_tensor": rand(4, 3)}, {}, ("X",), name="rows", dtypes=COPIED),
        Sample({"X": rand(2, 3, 1), "target_tensor": rand(2, 6, 2)}, {}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(2, 3), "target_tensor": ints(2, 3)}, {}, ("X",), name="once"),
        Sample({"X": rand(0, 3), "target_tensor": rand(0, 6)}, {}, name="empty"),
    ],
)
def _reference_expand_as(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, target = inputs["X"], inputs["target_tensor"].shape
    return {"Out": np.tile(x, [n // d if d else 1 for d, n in zip(x.shape, target, strict=True)]).reshape(target)}


register_samples(
    "meshgrid",
    reference=lambda inputs, attrs: {"Out": list(map(np.array, np.meshgrid(*inputs["X"], indexing="ij")))},
    samples=lambda: [
        Sample({"X": [rand(3), rand(4, seed=1)]}, {}, ("X",), name="two", dtypes=COPIED),
        Sample({"X": [rand(2), rand(3, seed=1), rand(4, seed=2)]}, {}, ("X",), name="three", dtypes=WIDE),
        Sample({"X": [rand(5)]}, {}, ("X",), name="single"),
        Sample({"X": [rand(3), rand(), rand(1)]}, {}, ("X",), name="rank0"),
        Sample({"X": [rand(2), rand(0)]}, {}, name="empty"),
    ],
)
