from __future__ import annotations

from itertools import pairwise

import numpy as np

from fluidlite.conformance.sample_helpers import MIXED, WIDE, Attrs, Inputs, Lods, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples

_VALUE = np.asarray([0.5], "float32")


@register_samples(
    "sequence_pad",
    samples=lambda: [
        Sample({"X": rand(7, 2), "PadValue": _VALUE}, {}, ("X",), {"X": ((0, 2, 2, 7),)}, name="longest", dtypes=WIDE),
        Sample(
            {"X": rand(7, 2), "PadValue": rand(2)},
            {"padded_length": 6},
            ("X",),
            {"X": ((0, 1, 2), (0, 3, 7))},
            name="longer",
        ),
        Sample({"X": rand(3), "PadValue": _VALUE}, {}, ("X",), {"X": ((0, 3),)}, name="numbers"),
    ],
)
def _reference_pad(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    x, lengths = inputs["X"], np.diff(lod["X"][-1])
    steps = max(lengths) if attrs["padded_length"] < 0 else attrs["padded_length"]
    out = np.zeros((len(lengths), steps, *x.shape[1:]))
    out[...] = inputs["PadValue"]
    for row, (a, b) in zip(out, pairwise(lod["X"][-1]), strict=True):
        row[: b - a] = x[a:b]
    return {"Out": out, "Length": lengths.astype("int64")}


@register_samples(
    "sequence_unpad",
    samples=lambda: [
        Sample({"X": rand(3, 4, 2), "Length": np.array([2, 0, 4])}, {}, ("X",), name="steps", dtypes=MIXED),
        Sample({"X": rand(1, 3), "Length": np.array([3])}, {}, ("X",), name="one", dtypes=MIXED),
    ],
)
def _reference_unpad(inputs: Inputs, attrs: Attrs) -> Outputs:
    return {"Out": np.concatenate([x[:n] for x, n in zip(inputs["X"], inputs["Length"].reshape(-1), strict=True)])}


@register_samples(
    "sequence_mask",
    samples=lambda: [
        Sample({"X": np.array([2, 0, 5])}, {"maxlen": 4}, name="lengths", dtypes=MIXED),
        Sample(
            {"X": np.array([[1], [2]]), "MaxLenTensor": np.array([3])},
            {"out_dtype": "float32"},
            name="tensor",
            dtypes=MIXED,
        ),
    ],
)
def _reference_mask(inputs: Inputs, attrs: Attrs) -> Outputs:
    steps = int(inputs["MaxLenTensor"].reshape(-1)[0]) if "MaxLenTensor" in inputs else attrs["maxlen"]
    return {
        "Y": (np.arange(steps) < inputs["X"][..., None]).astype(
            "float64" if "float" in attrs["out_dtype"] else attrs["out_dtype"]
        )
    }
