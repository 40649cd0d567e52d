"""Creation of constants: fill_constant and its kin, fill, assign_value, zeros."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, INTS, is_float
from fluidlite.codegen.expr import zeros
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, like, size
from fluidlite.operators.math.filling import fill_number
from fluidlite.operators.samples import EVERY, bools, ints, rand
from fluidlite.operators.scalar_op import unary

_SHAPE = Attr("shape", "ints", doc="dims of Out")
_VALUE = Attr("value", "float", 0.0, doc="what Out is filled with; it is converted to dtype")
_DTYPE = Attr("dtype", "dtype", "float32", doc="dtype of Out")


SHAPE_SLOTS = (
    Slot("ShapeTensor", dispensable=True, value=True, doc="dims of Out, [rank]; they win over the attribute"),
    Slot("ShapeTensorList", duplicable=True, dispensable=True, value=True, doc="dims of Out, [1] each; these win"),
)


def shape_of(call: Call) -> tuple[int, ...]:
    """Return the dims that the tensors or the attribute say: -1 where a tensor is not known yet."""
    dims: tuple[int, ...] = tuple(call.attr("shape"))
    if call.has("ShapeTensorList"):
        for i in range(call.count("ShapeTensorList")):
            if size(call.dims("ShapeTensorList", i)) not in (1, -1):
                call.fail("ShapeTensorList", "tensors of one number each")
        found = [call.value("ShapeTensorList", i) for i in range(call.count("ShapeTensorList"))]
        dims = tuple(-1 if value is None else int(value[0]) for value in found)
    elif call.has("ShapeTensor"):
        rank = call.dims("ShapeTensor")
        call.need(len(rank) == 1 and rank[0] >= 0, "ShapeTensor", "[rank], and a known rank")
        value = call.value("ShapeTensor")
        dims = (-1,) * rank[0] if value is None else tuple(map(int, value))
    else:
        if any(d < 0 for d in dims):
            do = "use fill_constant_batch_size_like for a dim that is unknown"
            call.fail_attr("shape", "dims of 0 or more", do=do)
        return dims
    slot = "ShapeTensorList" if call.has("ShapeTensorList") else "ShapeTensor"
    if any(d < -1 for d in dims) or (call.known and -1 in dims and None not in _values(call, slot)):
        call.fail(slot, "dims of 0 or more", got=list(dims))
    return dims


def _values(call: Call, slot: str) -> list[Any]:
    return [call.value(slot, i) for i in range(call.count(slot))]


def infer_shape(call: Call) -> Inferred:
    """Out has the dims and dtype that attributes, or tensors, say."""
    return {"Out": Spec.of(shape_of(call), call.attr("dtype"))}


def _infer_fill(call: Call) -> Inferred:
    if call.has("ValueTensor"):
        call.need(size(call.dims("ValueTensor")) in (1, -1), "ValueTensor", "one number")
    try:
        float(call.attr("str_value") or 0)
    except ValueError:
        call.fail_attr("str_value", "a number as text, or nothing")
    return infer_shape(call)


def _exact(dtype: str) -> str:
    """Return the dtype in which a reference answers for ``dtype``."""
    return "float64" if "float" in dtype else dtype


_MOST_KNOWN = 64
"""Elements up to which the planner knows a constant's numbers."""


def _known_fill(call: Call) -> dict[str, tuple[float, ...] | None]:
    """The numbers of a small constant, for operators that take them as metadata."""
    count = size(call.dims("Out"))
    if not 0 <= count <= _MOST_KNOWN or (call.has("ValueTensor") and call.value("ValueTensor") is None):
        return {"Out": None}
    return {"Out": (fill_number(call),) * count}


# fill_constant -----------------------------------------------------------------------------------------------------


def _filled(shape: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"Out": np.full(tuple(shape), attrs["value"], _exact(attrs["dtype"]))}


def _reference_fill(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
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


register_op(
    "fill_constant",
    inputs=(
        *SHAPE_SLOTS,
        Slot("ValueTensor", dispensable=True, value=True, doc="the value, [1]; wins over the others"),
    ),
    outputs=("Out",),
    attrs=(
        replace(_SHAPE, default=()),
        _VALUE,
        _DTYPE,
        Attr("str_value", "str", "", doc="the value as text, for what a float cannot hold; wins over value"),
    ),
    infer=_infer_fill,
    constant=_known_fill,
    dtypes={"ShapeTensor": INTS, "ShapeTensorList": INTS},
    reference=_reference_fill,
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
    doc="Out = value, everywhere",
    source="Fluid fill_constant_op.cc",
)

# fill_constant_batch_size_like -------------------------------------------------------------------------------------


LIKE_ATTRS = (
    _SHAPE,
    Attr("input_dim_idx", "int", 0, doc="which dim of Input is the batch; 0 of a LoD tensor: its sequences"),
    Attr("output_dim_idx", "int", 0, doc="which dim of Out is the batch"),
)


def infer_like(call: Call) -> Inferred:
    """Out has the dims and dtype that the attributes say, but one dim, which is Input's."""
    spec, shape = call.spec("Input"), list(call.attr("shape"))
    source, target = call.attr("input_dim_idx"), call.attr("output_dim_idx")
    if not 0 <= source < spec.rank:
        call.fail_attr("input_dim_idx", f"a dim of Input, which is {call.shown('Input')}")
    if not 0 <= target < len(shape):
        call.fail_attr("output_dim_idx", f"a dim of shape, which has {len(shape)}")
    batch = spec.dims[source]
    if source == 0 and spec.lod_level:  # a batch of sequences counts its sequences
        batch = len(spec.lod[-1]) - 1 if spec.lod else -1
    shape[target] = batch
    if any(d < 0 for i, d in enumerate(shape) if i != target):
        call.fail_attr("shape", "dims of 0 or more, but for output_dim_idx")
    return {"Out": Spec.of(shape, call.attr("dtype"))}


def _reference_like(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    shape = list(attrs["shape"])
    shape[attrs["output_dim_idx"]] = inputs["Input"].shape[attrs["input_dim_idx"]]
    return _filled(shape, attrs)


register_op(
    "fill_constant_batch_size_like",
    inputs=(Slot("Input", metadata_only=True),),
    outputs=("Out",),
    attrs=(*LIKE_ATTRS, _VALUE, _DTYPE),
    infer=infer_like,
    reference=_reference_like,
    samples=lambda: [
        Sample({"Input": rand(5, 7)}, {"shape": [-1, 3], "value": 2.0}, name="rows"),
        Sample({"Input": rand(5, 7)}, {"shape": [2, -1], "input_dim_idx": 1, "output_dim_idx": 1}, name="columns"),
        Sample({"Input": rand(5)}, {"shape": [9, 2], "value": 4.0, "dtype": "int64"}, name="int64"),
        Sample({"Input": rand(0, 7)}, {"shape": [-1, 3], "value": 2.0}, name="empty"),
    ],
    doc="Out = value; dim output_dim_idx of Out is dim input_dim_idx of Input",
    source="Fluid fill_constant_batch_size_like_op.cc",
)

# assign_value ------------------------------------------------------------------------------------------------------


_VALUES = ("fp32_values", "int32_values", "int64_values", "bool_values")


def _infer_value(call: Call) -> Inferred:
    found = infer_shape(call)
    dtype, counted = call.attr("dtype"), prod(call.attr("shape"))
    taken = ("fp32_values",) if is_float(dtype) else (f"{dtype}_values", "int32_values")
    used = next((name for name in taken if name in _VALUES and call.attr(name)), taken[-1])
    for name in _VALUES:
        if name != used and call.attr(name):
            call.fail_attr(name, f"nothing, for Out is {dtype}", do=f"give {used}")
    if len(call.attr(used)) != counted:
        call.fail_attr(used, f"{counted} values, for dims {list(call.attr('shape'))}")
    if not is_float(dtype):
        low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if not all(low <= value <= high for value in call.attr(used)):
            call.fail_attr(used, f"values from {low} to {high}, for Out is {dtype}")
    return found


def _reference_value(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    values = sum((attrs[name] for name in _VALUES), ())  # only one has any
    return {"Out": np.reshape(np.asarray(values, _exact(attrs["dtype"])), attrs["shape"])}


register_op(
    "assign_value",
    outputs=("Out",),
    attrs=(
        _SHAPE,
        _DTYPE,
        Attr(
            "fp32_values", "floats", (), doc="values of a floating Out, row by row; kept in float64, and rounded once"
        ),
        Attr("int32_values", "ints", (), doc="values of any other Out, row by row; of any width, and 0 or 1 of a bool"),
        Attr("int64_values", "ints", (), doc="values of an int64 Out, instead of int32_values"),
        Attr("bool_values", "bools", (), doc="values of a bool Out, instead of int32_values"),
    ),
    infer=_infer_value,
    constant=lambda call: {"Out": next((call.attr(name) for name in _VALUES if call.attr(name)), ())},
    reference=_reference_value,
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
    doc="Out = the values",
    source="Fluid assign_value_op.cc",
)

# fill --------------------------------------------------------------------------------------------------------------


def _infer_values(call: Call) -> Inferred:
    if len(call.attr("value")) != prod(call.attr("shape")):
        call.fail_attr("value", f"{prod(call.attr('shape'))} numbers, for dims {list(call.attr('shape'))}")
    return infer_shape(call)


register_op(
    "fill",
    outputs=("Out",),
    attrs=(Attr("value", "floats", doc="the numbers, row by row"), _SHAPE, _DTYPE),
    infer=_infer_values,
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
    doc="Out = the values; integers truncate them",
    source="Fluid fill_op.cc",
)

# fill_any_like and zeros -------------------------------------------------------------------------------------------


register_op(
    "fill_any_like",
    inputs=(Slot("X", metadata_only=True),),
    outputs=("Out",),
    attrs=(_VALUE, Attr("dtype", "dtype", optional=True, doc="dtype of Out; none, or -1: that of X")),
    infer=lambda call: {"Out": like(call.spec("X"), dtype=call.attr("dtype") or call.dtype("X"))},
    dtypes={"X": ALL},
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
    doc="Out = value, in the dims of X",
    source="Fluid fill_any_like_op.cc",
)


def _decompose_zeros(call: Call, build: Any) -> None:
    build("fill_any_like", {"X": build.input("X")}, {"Out": build.output("Out")}, {"dtype": call.attr("dtype")})


register_op(
    "fill_zeros_like2",
    inputs=(Slot("X", metadata_only=True),),
    outputs=("Out",),
    attrs=(_DTYPE,),
    infer=lambda call: {"Out": like(call.spec("X"), dtype=call.attr("dtype"))},
    decompose=_decompose_zeros,
    dtypes={"X": ALL},
    reference=lambda inputs, attrs: {"Out": np.zeros(inputs["X"].shape, _exact(attrs["dtype"]))},
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {}, name="matrix"),
        Sample({"X": ints(4)}, {"dtype": "int64"}, name="int64", dtypes=("int64",)),
    ],
    doc="Out = 0, in the dims of X",
    source="Fluid fill_zeros_like_op.cc",
)

unary("fill_zeros_like", lambda x: zeros(x), dtypes={"X": ALL}, slots=(Slot("X", metadata_only=True),),
      reference=lambda inputs, attrs: {"Out": np.zeros_like(inputs["X"])},
      samples=lambda: [
          Sample({"X": rand(5, 7)}, {}, name="matrix", dtypes=EVERY),
          Sample({"X": np.asarray([np.nan, np.inf], "float32")}, {}, name="not_finite"),
          Sample({"X": ints(4)}, {}, name="int64", dtypes=("int64",)),
          Sample({"X": bools(4)}, {}, name="bool", dtypes=("bool",)),
          Sample({"X": rand(0, 3)}, {}, name="empty"),
      ],
      doc="Out = 0, in the dims and dtype of X", source="Fluid fill_zeros_like_op.cc")  # fmt: skip
