"""Creation: constants, zeros, random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from math import erf, prod
from math import sqrt as root
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, ALL_FLOATS, is_float
from fluidlite.codegen.expr import gaussian, log, uniform, zeros
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred
from fluidlite.operators.samples import EVERY, bools, ints, rand
from fluidlite.operators.scalar_op import scalar_op, unary

_SHAPE = Attr("shape", "ints", doc="dims of Out")
_VALUE = Attr("value", "float", 0.0, doc="what Out is filled with; it is converted to dtype")
_DTYPE = Attr("dtype", "dtype", "float32", doc="dtype of Out")


def _infer_shape(call: Call) -> Inferred:
    """Out has the dims and dtype that the attributes say."""
    if any(d < 0 for d in call.attr("shape")):
        call.fail_attr("shape", "dims of 0 or more", do="use fill_constant_batch_size_like for a dim that is unknown")
    return {"Out": Spec.of(call.attr("shape"), call.attr("dtype"))}


def _exact(dtype: str) -> str:
    """Return the dtype in which a reference answers for ``dtype``."""
    return "float64" if "float" in dtype else dtype


_MOST_KNOWN = 64
"""Elements up to which the planner knows a constant's numbers."""


def _known_fill(call: Call) -> dict[str, tuple[float, ...] | None]:
    """The numbers of a small constant, for operators that take them as metadata."""
    size, dtype, value = prod(call.dims("Out")), call.attr("dtype"), call.attr("value")
    if size > _MOST_KNOWN or any(call.has(slot.name) for slot in call.op.inputs):
        return {"Out": None}
    return {"Out": (value if is_float(dtype) else int(value),) * size}


# fill_constant -----------------------------------------------------------------------------------------------------


def _filled(shape: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"Out": np.full(tuple(shape), attrs["value"], _exact(attrs["dtype"]))}


register_op(
    "fill_constant",
    outputs=("Out",),
    attrs=(_SHAPE, _VALUE, _DTYPE),
    infer=_infer_shape,
    constant=_known_fill,
    reference=lambda inputs, attrs: _filled(attrs["shape"], attrs),
    samples=lambda: [
        Sample({}, {"shape": [3, 4]}, name="zeros"),
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


def _infer_like(call: Call) -> Inferred:
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
    attrs=(
        _SHAPE,
        Attr("input_dim_idx", "int", 0, doc="which dim of Input is the batch; 0 of a LoD tensor: its sequences"),
        Attr("output_dim_idx", "int", 0, doc="which dim of Out is the batch"),
        _VALUE,
        _DTYPE,
    ),
    infer=_infer_like,
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


def _infer_value(call: Call) -> Inferred:
    found = _infer_shape(call)
    dtype, counted = call.attr("dtype"), prod(call.attr("shape"))
    used, unused = ("fp32_values", "int32_values") if is_float(dtype) else ("int32_values", "fp32_values")
    if call.attr(unused):
        call.fail_attr(unused, f"nothing, for Out is {dtype}", do=f"give {used}")
    if len(call.attr(used)) != counted:
        call.fail_attr(used, f"{counted} values, for dims {list(call.attr('shape'))}")
    if not is_float(dtype):
        low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if not all(low <= value <= high for value in call.attr(used)):
            call.fail_attr(used, f"values from {low} to {high}, for Out is {dtype}")
    return found


def _reference_value(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    dtype = _exact(attrs["dtype"])
    values = attrs["fp32_values"] if dtype == "float64" else attrs["int32_values"]
    return {"Out": np.reshape(np.asarray(values, dtype), attrs["shape"])}


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
    ),
    infer=_infer_value,
    constant=lambda call: {"Out": call.attr("fp32_values") or call.attr("int32_values")},
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
        Sample({}, {"shape": [], "fp32_values": [2.5]}, name="rank0"),
        Sample({}, {"shape": [0, 2]}, name="empty"),
    ],
    doc="Out = the values",
    source="Fluid assign_value_op.cc",
)

# fill_zeros_like ---------------------------------------------------------------------------------------------------

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

# Random numbers ----------------------------------------------------------------------------------------------------

_SEED = Attr("seed", "int", 0, doc="0: the program's seed; else this operator's own")


def _truncated(*, mean: float, std: float) -> Any:
    """Return a normal number within two deviations of the mean, by the inverse of its distribution function.

    The inverse error function is Giles's polynomial for its central region ("Approximating the erfinv
    function", GPU Computing Gems, 2011); two deviations never leave it.
    """
    t = erf(root(2)) * (2 * uniform() - 1)
    w = -log((1 - t) * (1 + t)) - 2.5
    p: Any = 2.81022636e-08
    for term in (3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
                 0.246640727, 1.50140941):  # fmt: skip
        p = p * w + term
    return mean + std * root(2) * p * t


_FLOAT = Attr("dtype", "dtype", "float32", choices=ALL_FLOATS, doc="dtype of Out")
_NORMAL = (_SHAPE, Attr("mean", "float", 0.0), Attr("std", "float", 1.0), _SEED, _FLOAT)

scalar_op("uniform_random", lambda *, min, max: min + (max - min) * uniform(), random=True, infer=_infer_shape,
          attrs=(_SHAPE, Attr("min", "float", -1.0), Attr("max", "float", 1.0), _SEED, _FLOAT),
          doc="Out = random numbers, uniform in [min, max)", source="Fluid uniform_random_op.cc")  # fmt: skip

scalar_op("gaussian_random", lambda *, mean, std: mean + std * gaussian(), random=True, infer=_infer_shape,
          attrs=_NORMAL, doc="Out = random numbers, normal with mean and standard deviation std",
          source="Fluid gaussian_random_op.cc")  # fmt: skip

scalar_op("truncated_gaussian_random", _truncated, random=True, infer=_infer_shape, attrs=_NORMAL,
          doc="Out = random numbers, normal with mean and std (before truncation), none beyond two std of the mean",
          source="Fluid truncated_gaussian_random_op.cc")  # fmt: skip
