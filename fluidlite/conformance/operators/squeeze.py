from __future__ import annotations

from math import prod

import numpy as np

from fluidlite.conformance.sample_helpers import COPIED, Attrs, Inputs, Outputs, rand, stated
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "squeeze",
    "squeeze2",
    samples=lambda: [
        Sample({"X": rand(1, 3, 1, 5)}, {"axes": [0]}, ("X",), name="first", dtypes=COPIED),
        Sample({"X": rand(1, 3, 1, 5)}, {"axes": [-2, 0]}, ("X",), name="negative"),
        Sample({"X": rand(3, 1, 2, 1)}, {"axes": [1, 1]}, ("X",), name="twice"),
        Sample({"X": rand(1, 3, 1, 5)}, {}, ("X",), name="all"),
        Sample({"X": rand(3, 2)}, {}, ("X",), name="none"),
        Sample({"X": rand(1, 1)}, {"axes": [0, 1]}, ("X",), name="rank0"),
        Sample({"X": rand(0, 1, 4)}, {"axes": [1]}, name="empty"),
    ],
)
def _reference_squeeze(inputs: Inputs, attrs: Attrs) -> Outputs:
    return {"Out": np.squeeze(inputs["X"], tuple({axis % inputs["X"].ndim for axis in attrs["axes"]}) or None)}


_AXES = ("AxesTensorList", "AxesTensor")


@register_samples(
    "unsqueeze",
    "unsqueeze2",
    samples=lambda: [
        Sample({"X": rand(3, 5)}, {"axes": [0]}, ("X",), name="first", dtypes=COPIED),
        Sample({"X": rand(3, 4, 5)}, {"axes": [0, 4]}, ("X",), name="both_ends"),
        Sample({"X": rand(3, 4)}, {"axes": [-1, 1]}, ("X",), name="negative"),
        Sample({"X": rand(3, 4)}, {"axes": [1, 1]}, ("X",), name="twice"),
        Sample({"X": rand()}, {"axes": [0, -1]}, ("X",), name="rank0"),
        Sample({"X": rand(3, 4), "AxesTensor": np.asarray([2, 0], "int32")}, {}, ("X",), name="by_tensor"),
        Sample(
            {"X": rand(3, 4), "AxesTensorList": [np.asarray([1], "int32"), np.asarray([-1], "int64")]},
            {},
            ("X",),
            name="by_list",
        ),
        Sample({"X": rand(0, 4)}, {"axes": [1]}, name="empty"),
    ],
)
def _reference_unsqueeze(inputs: Inputs, attrs: Attrs) -> Outputs:
    out = inputs["X"]
    for axis in stated(inputs, attrs, "axes", *_AXES):
        out = np.expand_dims(out, axis)
    return {"Out": out}


register_samples(
    "flatten",
    "flatten2",
    reference=lambda inputs, attrs: {
        "Out": inputs["X"].reshape(prod(inputs["X"].shape[: attrs["axis"]]), prod(inputs["X"].shape[attrs["axis"] :]))
    },
    samples=lambda: [
        Sample({"X": rand(2, 3, 4)}, {}, ("X",), name="rows", dtypes=COPIED),
        Sample({"X": rand(2, 3, 4)}, {"axis": 2}, ("X",), name="two"),
        Sample({"X": rand(2, 3)}, {"axis": 0}, ("X",), name="row"),
        Sample({"X": rand(2, 3)}, {"axis": 2}, ("X",), name="column"),
        Sample({"X": rand(4)}, {}, ("X",), name="vector"),
        Sample({"X": rand()}, {"axis": 0}, ("X",), name="rank0"),
        Sample({"X": rand(0, 2, 3)}, {}, name="empty"),
        Sample({"X": rand(2, 0, 3)}, {"axis": 1}, name="empty_rows"),
    ],
)
