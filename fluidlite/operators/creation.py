"""Creation of constant tensors: fill_constant and its variants, fill, assign_value, zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL, integer_limits, is_float
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import operator
from fluidlite.geometry.numbers import numbers_of
from fluidlite.operators.inference import Inferred, number_fits, size
from fluidlite.operators.math.fill import fill_number
from fluidlite.operators.scalar_op import Elementwise, unary
from fluidlite.operators.sequence_rows import sequence_count
from fluidlite.program.op_call import Call, slot_of_attribute
from fluidlite.program.opdef import Attr, Slot, as_tensor, as_tensors
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import MAX_RANK, Spec

_SHAPE = Attr("shape", "ints", doc="dims of Out")
SHAPE = replace(_SHAPE, default=(), tensors=(as_tensors("ShapeTensorList"), as_tensor("ShapeTensor")))
_VALUE = Attr("value", "float", 0.0, static=True, doc="the value of Out; it is converted to dtype")
_DTYPE = Attr("dtype", "dtype", "float32", doc="dtype of Out")


def shape_of(call: Call) -> tuple[int, ...]:
    """Return the dims that tensors or the attribute give; -1 where a tensor's value is unknown."""
    dims, slot = numbers_of(call, "shape"), slot_of_attribute(call, "shape")
    if dims is None or len(dims) > MAX_RANK:
        call.fail_attr("shape", f"a known number of dims, {MAX_RANK} at most")
    if slot is None and any(d is not None and d < 0 for d in dims):
        call.fail_attr("shape", "dims of 0 or more", do="use fill_constant_batch_size_like for a dim that is unknown")
    all_known = call.is_static and None not in dims
    if any(d is not None and (d < -1 or (d == -1 and all_known)) for d in dims):
        call.fail_attr("shape", "dims of 0 or more")
    return tuple(-1 if d is None else d for d in dims)


def infer_shape(call: Call) -> Inferred:
    """Out has the dims and dtype that attributes or tensors give."""
    return {"Out": Spec.of(shape_of(call), call.attr("dtype"))}


def _infer_fill(call: Call) -> Inferred:
    if call.has("ValueTensor"):
        call.need(size(call.dims("ValueTensor")) in (1, -1), "ValueTensor", "one number")
    try:
        float(call.attr("str_value") or 0)
    except ValueError:
        call.fail_attr("str_value", "a number as text, or nothing")
    specs = infer_shape(call)
    if not call.has("ValueTensor"):
        number_fits(call, "str_value" if call.attr("str_value") else "value", call.attr("dtype"))
    return specs


_MAX_KNOWN_ELEMENTS = 64
"""Maximum number of elements of a constant whose values are known when the program is planned."""


def _known_fill(call: Call) -> dict[str, tuple[float, ...] | None]:
    """The values of a small constant, for operators that read them as metadata."""
    count = size(call.dims("Out"))
    if not 0 <= count <= _MAX_KNOWN_ELEMENTS or (call.has("ValueTensor") and call.value("ValueTensor") is None):
        return {"Out": None}
    return {"Out": (fill_number(call),) * count}


# fill_constant -----------------------------------------------------------------------------------------------------


def full_cast(dims: Sequence[e.Numeric], value: e.Numeric, dtype: str) -> e.Tensor:
    """A tensor of one value; for integers the value is truncated and saturated, as by ``cast``."""
    number = e.number(value)
    if is_float(dtype) or dtype == "bool":
        return e.full(dims, number, dtype)
    if not number.whole:
        return e.broadcast(e.cast(e.full((), number, "float64"), dtype), dims)
    low, high = integer_limits(dtype)
    return e.full(dims, e.lowest(e.highest(number, low), high), dtype)


@operator(
    "fill_constant",
    Differentiation(no_gradient={"ValueTensor": "layers.expand(value, times), whose value has a gradient"}),
    Inference(_infer_fill, constant=_known_fill),
    inputs=(Slot("ValueTensor", dispensable=True, value=True, doc="the value, [1]; it takes precedence"),),
    attrs=(
        SHAPE,
        _VALUE,
        _DTYPE,
        Attr(
            "str_value",
            "str",
            "",
            doc="the value as text, for numbers that a float cannot hold; it takes precedence over value",
        ),
    ),
    doc="Out = value, everywhere",
    source="Fluid fill_constant_op.cc",
)
def fill_constant(value_tensor: Any, *, value: float, dtype: str, str_value: str) -> e.Tensor:
    """Out has the dims that inference has computed."""
    number: e.Numeric = value
    if value_tensor is not None:
        number = value_tensor[0]
    elif str_value:
        number = int(str_value) if str_value.strip().lstrip("+-").isdigit() else float(str_value)
    return full_cast(e.results("Out")[0], number, dtype)


# fill_constant_batch_size_like -------------------------------------------------------------------------------------


LIKE_ATTRS = (
    _SHAPE,
    Attr("input_dim_idx", "int", 0, doc="which dim of Input is the batch"),
    Attr("output_dim_idx", "int", 0, doc="which dim of Out is the batch"),
)


def infer_like(call: Call, batch: int | None = None) -> Inferred:
    """Out has the dims and dtype of the attributes, except one dim, which is ``batch`` or Input's."""
    spec, shape = call.spec("Input"), list(call.attr("shape"))
    input_dim, output_dim = call.attr("input_dim_idx"), call.attr("output_dim_idx")
    if not 0 <= input_dim < spec.rank:
        call.fail_attr("input_dim_idx", f"a dim of Input, which is {call.describe('Input')}")
    if not 0 <= output_dim < len(shape):
        call.fail_attr("output_dim_idx", f"a dim of shape, which has {len(shape)}")
    shape[output_dim] = spec.dims[input_dim] if batch is None else batch
    if any(d < 0 for i, d in enumerate(shape) if i != output_dim):
        call.fail_attr("shape", "dims of 0 or more, but for output_dim_idx")
    return {"Out": Spec.of(shape, call.attr("dtype"))}


def _infer_constant_like(call: Call) -> Inferred:
    """As :func:`infer_like`, but the batch of a LoD tensor is its number of sequences, as in Fluid's kernel."""
    spec = call.spec("Input")
    number_fits(call, "value", call.attr("dtype"))
    return infer_like(call, sequence_count(spec) if spec.lod_level and call.attr("input_dim_idx") == 0 else None)


@operator(
    "fill_constant_batch_size_like",
    Inference(_infer_constant_like),
    inputs=[Slot("Input", metadata_only=True, doc="only its dims are read")],
    attrs=[*LIKE_ATTRS, _VALUE, _DTYPE],
    doc="Out = value; dim output_dim_idx of Out is dim input_dim_idx of Input, for dim 0 of a LoD tensor its number "
    "of sequences",
    source="Fluid fill_constant_batch_size_like_op.cc",
)
def fill_constant_batch_size_like(input: e.Tensor, *, value: float, dtype: str) -> e.Tensor:
    """The dims are inferred; the batch dim of a LoD tensor is its number of sequences."""
    return full_cast(e.results("Out")[0], value, dtype)


# assign_value ------------------------------------------------------------------------------------------------------


_VALUES = ("fp32_values", "int32_values", "int64_values", "bool_values")


def _infer_value(call: Call) -> Inferred:
    dtype = call.attr("dtype")
    candidates = ("fp32_values",) if is_float(dtype) else (f"{dtype}_values", "int32_values")
    used = next((name for name in candidates if name in _VALUES and call.attr(name)), candidates[-1])
    for name in _VALUES:
        if name != used and call.attr(name):
            call.fail_attr(name, f"nothing, for Out is {dtype}", do=f"give {used}")
    return _infer_listed(call, used, (0, 1))


def _infer_listed(call: Call, name: str, bool_limits: tuple[int, int] | None = None) -> Inferred:
    """Check an attribute that lists the values of Out; a bool accepts any number, or those of ``bool_limits``."""
    specs, dtype, values = infer_shape(call), call.attr("dtype"), call.attr(name)
    elements = prod(call.attr("shape"))
    if len(values) != elements:
        call.fail_attr(name, f"{elements} values, for dims {list(call.attr('shape'))}")
    limits = None if is_float(dtype) else bool_limits if dtype == "bool" else integer_limits(dtype)
    if limits is not None and values and not _within(limits, values):
        call.fail_attr(name, f"numbers from {limits[0]} to {limits[1]}, for Out is {dtype}")
    return specs


def _within(limits: tuple[int, int], values: Sequence[Any]) -> bool:
    """Whether all numbers are within limits; NaN is not. Long lists of integers take the fast path of min and max."""
    if type(values[0]) is int and type(values[-1]) is int and type(sum(values)) is int:
        return bool(limits[0] <= min(values) and max(values) <= limits[1])
    return all(limits[0] <= value <= limits[1] for value in values)


register_op(
    "assign_value",
    Inference(
        _infer_value, constant=lambda call: {"Out": next((call.attr(name) for name in _VALUES if call.attr(name)), ())}
    ),
    outputs=("Out",),
    attrs=(
        _SHAPE,
        _DTYPE,
        Attr(
            "fp32_values", "floats", (), doc="values of a floating Out, row by row; stored as float64, and rounded once"
        ),
        Attr("int32_values", "ints", (), doc="values of any other Out, row by row; of any width, and 0 or 1 of a bool"),
        Attr("int64_values", "ints", (), doc="values of an int64 Out, instead of int32_values"),
        Attr("bool_values", "bools", (), doc="values of a bool Out, instead of int32_values"),
    ),
    doc="Out = the values",
    source="Fluid assign_value_op.cc",
)

# fill --------------------------------------------------------------------------------------------------------------


register_op(
    "fill",
    Inference(lambda call: _infer_listed(call, "value")),
    outputs=("Out",),
    attrs=(Attr("value", "floats", doc="the numbers, row by row"), _SHAPE, _DTYPE),
    doc="Out = the values; integers truncate them",
    source="Fluid fill_op.cc",
)

# fill_any_like and zeros -------------------------------------------------------------------------------------------


def _infer_fill_any_like(call: Call) -> Inferred:
    """Check that the dtype can hold the value."""
    number_fits(call, "value", call.attr("dtype") or call.dtype("X"))
    return infer(call)


_LIKE = Slot("X", metadata_only=True)


@operator(
    "fill_any_like",
    Inference(_infer_fill_any_like),
    inputs=[_LIKE],
    attrs=[_VALUE, Attr("dtype", "dtype", optional=True, doc="dtype of Out; none, or -1: that of X")],
    dtypes={"X": ALL},
    doc="Out = value, in the dims of X",
    source="Fluid fill_any_like_op.cc",
)
def fill_any_like(x: e.Tensor, *, value: float, dtype: str | None) -> e.Tensor:
    """Out also has the LoD of X."""
    return full_cast(x.dims, value, dtype or x.dtype)


@operator(
    "fill_zeros_like2",
    inputs=[_LIKE],
    attrs=[_DTYPE],
    dtypes={"X": ALL},
    doc="Out = 0, in the dims of X",
    source="Fluid fill_zeros_like_op.cc",
)
def fill_zeros_like2(x: e.Tensor, *, dtype: str) -> e.Tensor:
    """Out also has the LoD of X."""
    return e.full(x.dims, 0, dtype)


unary(
    "fill_zeros_like",
    lambda x: e.zeros_like(x),
    Elementwise(slots=(_LIKE,)),
    dtypes={"X": ALL},
    doc="Out = 0, in the dims and dtype of X",
    source="Fluid fill_zeros_like_op.cc",
)
