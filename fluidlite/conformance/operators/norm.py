from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "norm",
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {"axis": 1}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(5, 7)}, {"axis": 0}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(2, 5, 19)}, {"axis": 1}, ("X",), name="middle", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4)}, {"axis": -1}, ("X",), name="last"),
        Sample({"X": rand(2, 3, 4)}, {"axis": -3, "epsilon": 0.5}, ("X",), name="epsilon"),
        Sample({"X": rand(6)}, {"axis": 0}, ("X",), name="vector"),
        Sample({"X": rand(40, 50)}, {"axis": 1}, name="long"),
        Sample({"X": rand(1, 1)}, {"axis": 1}, name="one"),
        Sample({"X": np.zeros((2, 3), "float32")}, {"axis": 1, "epsilon": 1e-4}, ("X",), name="zeros"),
        Sample({"X": rand(0, 3)}, {"axis": 1}, name="no_rows"),
        Sample({"X": rand(2, 0, 3)}, {"axis": 1}, name="empty_axis"),
    ],
)
def _reference_norm(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    length = np.sqrt(np.sum(x * x, axis=attrs["axis"], keepdims=True) + attrs["epsilon"])
    return {"Out": x / length, "Norm": length}


@register_samples(
    "lrn",
    samples=lambda: [
        Sample({"X": rand(2, 7, 2, 3)}, {}, ("X",), name="images", dtypes=EVERY),
        Sample({"X": rand(2, 7, 2, 3, low=1, high=2)}, {"n": 3, "alpha": 0.5}, ("X",), name="three", dtypes=WIDE),
        Sample({"X": rand(2, 6, 2, 2)}, {"k": 0.5, "beta": 0.3, "alpha": 0.1}, ("X",), name="numbers"),
        Sample({"X": rand(2, 3, 2, 7)}, {"data_format": "NHWC", "alpha": 1.0}, ("X",), name="last", dtypes=EVERY),
        Sample({"X": rand(1, 4, 4, 5)}, {"data_format": "NCHW", "alpha": 1.0}, ("X",), name="first", dtypes=WIDE),
        Sample({"X": rand(1, 2, 2, 19)}, {"data_format": "NHWC", "alpha": 1.0}, ("X",), name="many_last", dtypes=WIDE),
        Sample({"X": rand(2, 3, 2, 2)}, {"n": 9, "alpha": 1.0}, ("X",), name="wider_than_the_channels"),
        Sample({"X": rand(2, 3, 2, 2)}, {"n": 1, "alpha": 1.0}, ("X",), name="itself"),
        Sample({"X": rand(0, 3, 2, 2)}, {}, name="no_samples"),
    ],
)
def _reference_lrn(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, half = inputs["X"], attrs["n"] // 2
    axis = 3 if attrs["data_format"] == "NHWC" else 1
    middle = np.full(x.shape, attrs["k"])
    for c in range(x.shape[axis]):
        near = [j for j in range(x.shape[axis]) if abs(j - c) <= half]
        here = tuple(c if d == axis else slice(None) for d in range(4))
        middle[here] += attrs["alpha"] * np.sum(np.square(np.take(x, near, axis)), axis=axis)
    return {"Out": x / middle ** attrs["beta"], "MidOut": middle}


def _affine(*dims: int, axis: int) -> dict[str, Any]:
    return {"X": rand(*dims), "Scale": rand(dims[axis], seed=1), "Bias": rand(dims[axis], seed=2)}


_AFFINE_GRADS = ("X", "Scale", "Bias")
_FIRST: dict[str, Any] = {"data_layout": "NCHW"}


@register_samples(
    "affine_channel",
    samples=lambda: [
        Sample(_affine(2, 3, 4, 5, axis=1), _FIRST, _AFFINE_GRADS, name="first", dtypes=EVERY),
        Sample(_affine(2, 4, 5, 3, axis=3), {"data_layout": "NHWC"}, _AFFINE_GRADS, name="last", dtypes=WIDE),
        Sample(_affine(2, 4, 5, 3, axis=3), {}, _AFFINE_GRADS, name="any"),
        Sample(_affine(4, 3, axis=1), _FIRST, _AFFINE_GRADS, name="matrix"),
        Sample(_affine(0, 3, 2, 2, axis=1), _FIRST, name="no_samples"),
    ],
)
def _reference_affine(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    dims = (-1, *(1 for _ in x.shape[2:])) if attrs["data_layout"] == "NCHW" else (-1,)
    return {"Out": x * inputs["Scale"].reshape(dims) + inputs["Bias"].reshape(dims)}
