from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import COPIED, EVERY, WIDE, Attrs, Inputs, Outputs, rand, stated
from fluidlite.conformance.samples import Sample, register_samples


def _reference_axis(inputs: Inputs, attrs: Attrs) -> int:
    return int(inputs["AxisTensor"].reshape(-1)[0]) if "AxisTensor" in inputs else int(attrs["axis"])


register_samples(
    "concat",
    reference=lambda inputs, attrs: {"Out": np.concatenate(inputs["X"], axis=_reference_axis(inputs, attrs))},
    samples=lambda: [
        Sample({"X": [rand(2, 3), rand(4, 3, seed=1)]}, {}, ("X",), name="rows", dtypes=COPIED),
        Sample({"X": [rand(3, 2), rand(3, 1, seed=1), rand(3, 4)]}, {"axis": 1}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": [rand(2, 3, 4), rand(2, 2, 4, seed=1)]}, {"axis": -2}, ("X",), name="middle"),
        Sample({"X": [rand(3)]}, {}, ("X",), name="single"),
        Sample({"X": [rand(2, 4500), rand(2, 5, seed=1)]}, {"axis": 1}, name="long_runs"),
        Sample({"X": [rand(0, 3), rand(2, 3)]}, {}, name="one_empty"),
        Sample(
            {"X": [rand(3, 2), rand(3, 1, seed=1)], "AxisTensor": np.asarray([1], "int32")}, {}, ("X",), name="tensor"
        ),
    ],
)


@register_samples(
    "split",
    samples=lambda: [
        Sample({"X": rand(6, 6)}, {"num": 3}, ("X",), name="rows", dtypes=COPIED),
        Sample({"X": rand(3, 6)}, {"num": 2, "axis": 1}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(3, 6)}, {"sections": [1, 3, 2], "axis": -1}, ("X",), name="sections", dtypes=WIDE),
        Sample({"X": rand(2, 7, 3)}, {"sections": [2, -1, 1], "axis": 1}, ("X",), name="remainder"),
        Sample({"X": rand(4)}, {"num": 1}, ("X",), name="single"),
        Sample({"X": rand(2, 3)}, {"sections": [0, 2]}, name="empty_part"),
        Sample({"X": rand(3, 6), "AxisTensor": np.asarray([-1], "int32")}, {"num": 2}, ("X",), name="axis_tensor"),
        Sample(
            {"X": rand(3, 6), "SectionsTensorList": [np.asarray([n], "int32") for n in (1, -1, 2)]},
            {"axis": 1, "sections": [-1, 3, 2]},
            ("X",),
            name="sections_tensors",
        ),
        Sample({"X": rand(0, 4)}, {"num": 2, "axis": 1}, name="empty"),
    ],
)
def _reference_split(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, axis = inputs["X"], _reference_axis(inputs, attrs)
    sizes = stated(inputs, attrs, "sections", "SectionsTensorList")
    if not len(sizes):
        return {"Out": np.split(x, attrs["num"], axis)}
    sections = [s if s >= 0 else x.shape[axis] - sum(v for v in sizes if v >= 0) for s in sizes]
    return {"Out": np.split(x, np.cumsum(sections)[:-1], axis)}
