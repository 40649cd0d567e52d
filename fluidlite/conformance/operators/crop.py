from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import NUMBERS, WIDE, Attrs, Inputs, Outputs, rand, stated
from fluidlite.conformance.samples import Sample, register_samples


def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    offsets = stated(inputs, attrs, "offsets", "OffsetsTensor", "Offsets")
    shape = inputs["Y"].shape if "Y" in inputs else stated(inputs, attrs, "shape", "ShapeTensor", "Shape")
    bounds = zip(offsets, shape, strict=True)
    return {"Out": inputs["X"][tuple(slice(start, None if n < 0 else start + n) for start, n in bounds)]}


register_samples(
    "crop",
    reference=_reference,
    samples=lambda: [
        Sample({"X": rand(5, 6)}, {"offsets": [1, 2], "shape": [3, 2]}, ("X",), name="matrix", dtypes=NUMBERS),
        Sample({"X": rand(4, 5, 3)}, {"offsets": [1, 0, 2], "shape": [2, 5, 1]}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(4, 5)}, {"offsets": [0, 1], "shape": [-1, 3]}, ("X",), name="remainder"),
        Sample({"X": rand(5, 6), "Y": rand(2, 3)}, {"offsets": [2, 3]}, ("X",), name="like_y"),
        Sample(
            {"X": rand(5, 6), "Offsets": np.asarray([1, 2], "int32")}, {"shape": [3, 2]}, ("X",), name="offsets_tensor"
        ),
        Sample({"X": rand(5), "Y": rand(2), "Offsets": np.asarray([3], "int32")}, {}, ("X",), name="both_tensors"),
        Sample({"X": rand(4, 5), "Offsets": np.asarray([0, 2])}, {"shape": [3, -1]}, ("X",), name="offsets_and_rest"),
        Sample({"X": rand(4, 5), "Offsets": np.asarray([0, 0])}, {"shape": [4, 2]}, ("X",), name="offsets_zero"),
        Sample({"X": rand(4, 5), "Offsets": np.asarray([1, 3])}, {"shape": [3, 2]}, ("X",), name="offsets_tensor_end"),
        Sample({"X": rand(0, 6)}, {"offsets": [0, 2], "shape": [0, 3]}, name="empty"),
    ],
)


register_samples(
    "crop_tensor",
    reference=_reference,
    samples=lambda: [
        Sample({"X": rand(5, 6)}, {"offsets": [1, 2], "shape": [3, 2]}, ("X",), name="matrix", dtypes=NUMBERS),
        Sample({"X": rand(4, 5, 3)}, {"offsets": [1, 0, 2], "shape": [2, -1, 1]}, ("X",), name="rest", dtypes=WIDE),
        Sample({"X": rand(4, 5), "Shape": np.asarray([2, -1], "int32")}, {"offsets": [0, 3]}, ("X",), name="shape"),
        Sample(
            {"X": rand(4, 5), "ShapeTensor": [np.asarray([2], "int32"), np.asarray([3], "int64")]},
            {"offsets": [1, 2], "shape": [-1, -1]},
            ("X",),
            name="shapes",
        ),
        Sample({"X": rand(4, 5), "Offsets": np.asarray([1, 2], "int32")}, {"shape": [2, 2]}, ("X",), name="offsets"),
        Sample(
            {"X": rand(4, 5), "OffsetsTensor": [np.asarray([2], "int32"), np.asarray([0], "int32")]},
            {"offsets": [-1, -1], "shape": [2, -1]},
            ("X",),
            name="each_offset",
        ),
        Sample({"X": rand(0, 6)}, {"offsets": [0, 2], "shape": [-1, 3]}, name="empty"),
    ],
)
