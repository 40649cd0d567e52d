from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import COPIED, EVERY, Attrs, Inputs, Outputs, bools, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _exact(dtype: str) -> str:
    """Return the dtype of a reference's result for ``dtype``."""
    return "float64" if "float" in dtype else dtype


def _filled(shape: Any, attrs: Attrs) -> dict[str, Any]:
    return {"Out": np.full(tuple(shape), attrs["value"], _exact(attrs["dtype"]))}


@register_samples(
    "fill_constant",
    samples=lambda: [
        Sample({}, {"shape": [3, 4]}, name="zeros"),
        Sample({}, {"shape": [2], "str_value": "9007199254740993", "dtype": "int64"}, name="text"),
        Sample({}, {"shape": [2], "value": 1.0, "str_value": "-inf"}, name="infinity"),
        Sample({"ShapeTensor": np.array([2, 3], "int32")}, {"value": 1.5}, name="shape_tensor"),
        Sample({"ShapeTensorList": [np.array([2]), np.array([3], "int32")]}, {"value": 1.5, "shape": [9]}, name="list"),
        Sample({"ValueTensor": np.array([2.5], "float32")}, {"shape": [2], "value": 1.5}, name="value_tensor"),
        Sample({}, {"shape": [3, 4], "value": 1.5}, name="value"),
        Sample({}, {"shape": [1], "value": -7.0, "dtype": "int64"}, name="int64"),
        Sample({}, {"shape": [5], "value": 1.0, "dtype": "bool"}, name="bool"),
        Sample({}, {"shape": [5], "value": 0.5, "dtype": "float64"}, name="float64"),
        Sample({}, {"shape": [5], "value": 0.5, "dtype": "bfloat16"}, name="bfloat16"),
        Sample({}, {"shape": [0, 2], "value": 1.0}, name="empty"),
    ],
)
def _reference_fill(inputs: Inputs, attrs: Attrs) -> Outputs:
    shape, value, text = attrs["shape"], attrs["value"], attrs["str_value"]
    if "ShapeTensorList" in inputs:
        shape = [one[0] for one in inputs["ShapeTensorList"]]
    elif "ShapeTensor" in inputs:
        shape = inputs["ShapeTensor"]
    if "ValueTensor" in inputs:
        value = inputs["ValueTensor"][0]
    elif text:
        value = int(text) if "int" in attrs["dtype"] else float(text)
    return _filled(shape, {**attrs, "value": value})


@register_samples(
    "fill_constant_batch_size_like",
    samples=lambda: [
        Sample({"Input": rand(5, 7)}, {"shape": [-1, 3], "value": 2.0}, name="rows"),
        Sample({"Input": rand(5, 7)}, {"shape": [2, -1], "input_dim_idx": 1, "output_dim_idx": 1}, name="columns"),
        Sample({"Input": rand(5)}, {"shape": [9, 2], "value": 4.0, "dtype": "int64"}, name="int64"),
        Sample({"Input": rand(0, 7)}, {"shape": [-1, 3], "value": 2.0}, name="empty"),
    ],
)
def _reference_like(inputs: Inputs, attrs: Attrs) -> Outputs:
    shape = list(attrs["shape"])
    shape[attrs["output_dim_idx"]] = inputs["Input"].shape[attrs["input_dim_idx"]]
    return _filled(shape, attrs)


_VALUES = ("fp32_values", "int32_values", "int64_values", "bool_values")


@register_samples(
    "assign_value",
    samples=lambda: [
        Sample({}, {"shape": [2, 3], "fp32_values": [0.5, -1.5, 1e30, 0.1, 0.0, 7.0]}, name="matrix"),
        Sample({}, {"shape": [3], "dtype": "float64", "fp32_values": [0.1, 1e300, -(2.0**-60)]}, name="float64"),
        Sample({}, {"shape": [2, 2], "dtype": "float16", "fp32_values": [0.1, 2.0, -3.5, 1e9]}, name="float16"),
        Sample({}, {"shape": [2], "dtype": "bfloat16", "fp32_values": [0.1, 3.0]}, name="bfloat16"),
        Sample({}, {"shape": [2, 1], "dtype": "int32", "int32_values": [-(2**31), 2**31 - 1]}, name="int32"),
        Sample({}, {"shape": [3], "dtype": "int64", "int32_values": [-(2**63), 2**63 - 1, 2**53 + 1]}, name="int64"),
        Sample({}, {"shape": [2], "dtype": "uint8", "int32_values": [0, 255]}, name="uint8"),
        Sample({}, {"shape": [3], "dtype": "bool", "int32_values": [1, 0, 1]}, name="bool"),
        Sample({}, {"shape": [2, 2], "dtype": "bool", "bool_values": [True, 0, 1, False]}, name="bool_values"),
        Sample({}, {"shape": [2], "dtype": "int64", "int64_values": [-(2**63), 2**53 + 1]}, name="int64_values"),
        Sample({}, {"shape": [], "fp32_values": [2.5]}, name="rank0"),
        Sample({}, {"shape": [0, 2]}, name="empty"),
    ],
)
def _reference_value(inputs: Inputs, attrs: Attrs) -> Outputs:
    values = sum((attrs[name] for name in _VALUES), ())  # at most one is not empty
    return {"Out": np.reshape(np.asarray(values, _exact(attrs["dtype"])), attrs["shape"])}


register_samples(
    "fill",
    reference=lambda inputs, attrs: {
        "Out": np.reshape(np.asarray(attrs["value"], "float64").astype(_exact(attrs["dtype"])), attrs["shape"])
    },
    samples=lambda: [
        Sample({}, {"value": [0.5, -1.5, 1e30, 0.1, 0.0, 7.0], "shape": [2, 3]}, name="matrix"),
        Sample({}, {"value": [0.1, 2.0], "shape": [2, 1], "dtype": "float64"}, name="float64"),
        Sample({}, {"value": [0.1, 2.0], "shape": [2], "dtype": "float16"}, name="float16"),
        Sample({}, {"value": [-3.0, 2.9], "shape": [2], "dtype": "int32"}, name="int32"),
        Sample({}, {"value": [1.0, 0.0], "shape": [2], "dtype": "bool"}, name="bool"),
        Sample({}, {"value": [], "shape": [0, 2]}, name="empty"),
    ],
)


register_samples(
    "fill_any_like",
    reference=lambda inputs, attrs: _filled(
        inputs["X"].shape, {**attrs, "dtype": attrs["dtype"] or inputs["X"].dtype.name}
    ),
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {"value": 2.5}, name="matrix", dtypes=EVERY),
        Sample({"X": rand(5)}, {"value": 3.0, "dtype": "int64"}, lod={"X": ((0, 2, 5),)}, name="to_int64"),
        Sample({"X": ints(4)}, {"value": -1.0}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(4)}, {"value": 1.0}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 3)}, {"value": 1.0}, name="empty"),
    ],
)


register_samples(
    "fill_zeros_like2",
    reference=lambda inputs, attrs: {"Out": np.zeros(inputs["X"].shape, _exact(attrs["dtype"]))},
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {}, name="matrix"),
        Sample({"X": ints(4)}, {"dtype": "int64"}, name="int64", dtypes=("int64",)),
    ],
)


register_samples(
    "fill_zeros_like",
    reference=lambda inputs, attrs: {"Out": np.zeros_like(inputs["X"])},
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {}, name="matrix", dtypes=COPIED),
        Sample({"X": np.asarray([np.nan, np.inf], "float32")}, {}, name="not_finite"),
        Sample({"X": rand(0, 3)}, {}, name="empty"),
    ],
)
