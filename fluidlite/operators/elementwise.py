"""Elementwise operators on two tensors, scale and increment.

Y is broadcast against X as in Fluid: its dims without trailing 1s match consecutive dims of X from ``axis`` on
(-1: they match the last dims of X).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS, ALL_INTS, INTS
from fluidlite.expr import floor, floordiv, maximum, minimum, mod, pow_, rem, where
from fluidlite.expr.derivative_rules import exponent_slope, power_slope
from fluidlite.operators.assign_cast import copy_back
from fluidlite.operators.inference import Inferred, number_fits, one_number, spec_like
from fluidlite.operators.scalar_op import SUM_MEMORY, Elementwise, binary, scalar_op, unary
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Differentiation, Inference

_SOURCE = "Fluid elementwise_op.h"
_NUMBERS = (*ALL_FLOATS, *ALL_INTS)

_UNUSED = (
    *(Attr(f"{name}_data_format", "str", "", doc="a hint for Fluid's oneDNN kernels; of no effect") for name in "xy"),
    *(Attr(f"Scale_{name}", "float", 1.0, doc="of Fluid's int8 kernels; of no effect") for name in ("x", "y", "out")),
)
_pair = partial(binary, attrs=_UNUSED)


def _both(*types: str) -> dict[str, tuple[str, ...]]:
    return {"X": types, "Y": types}


_pair(
    "elementwise_add",
    lambda x, y: x + y,
    grad=lambda dout: (dout, dout),
    dtypes=_both(*_NUMBERS),
    doc="Out = X + Y",
    source=_SOURCE,
)

_pair(
    "elementwise_sub",
    lambda x, y: x - y,
    grad=lambda dout: (dout, -dout),
    dtypes=_both(*_NUMBERS),
    doc="Out = X - Y",
    source=_SOURCE,
)

_pair(
    "elementwise_mul",
    lambda x, y: x * y,
    Differentiation(memory=SUM_MEMORY),
    grad=lambda x, y, dout: (dout * y, dout * x),
    dtypes=_both(*_NUMBERS),
    doc="Out = X Y",
    source=_SOURCE,
)

_pair(
    "elementwise_div",
    lambda x, y: x / y,
    Differentiation(memory=SUM_MEMORY),
    grad=lambda y, out, dout: (dout / y, -dout * out / y),
    dtypes=_both(*_NUMBERS),
    doc="Out = X / Y; integers truncate toward 0",
    source=_SOURCE,
)

# Equal elements pass the gradient to Y, in both.
_pair(
    "elementwise_max",
    maximum,
    Differentiation(memory=SUM_MEMORY),
    grad=lambda x, y, dout: (where(x > y, dout, 0), where(x > y, 0, dout)),
    dtypes=_both(*_NUMBERS),
    doc="Out = max(X, Y); NaN if one is NaN",
    source=_SOURCE,
)

_pair(
    "elementwise_min",
    minimum,
    Differentiation(memory=SUM_MEMORY),
    grad=lambda x, y, dout: (where(x < y, dout, 0), where(x < y, 0, dout)),
    dtypes=_both(*_NUMBERS),
    doc="Out = min(X, Y); NaN if one is NaN",
    source=_SOURCE,
)

_pair(
    "elementwise_pow",
    pow_,
    Differentiation(memory=SUM_MEMORY),
    grad=lambda x, y, out, dout: (dout * power_slope(x, y), dout * exponent_slope(x, y, out)),
    dtypes=_both(*ALL_FLOATS, *INTS),
    doc="Out = X ^ Y; integers wrap",
    source=_SOURCE,
)


_FLOOR = Attr("floor", "bool", False, doc="integers are divided as by Python's //, rounded down; False: toward 0")

binary(
    "elementwise_mod",
    lambda x, y, *, floor: mod(x, y) if floor else rem(x, y),
    Differentiation(memory=SUM_MEMORY),
    grad=lambda x, y, dout: (dout, -dout * floor(x / y)),
    attrs=(*_UNUSED, _FLOOR),
    dtypes=_both(*_NUMBERS),
    doc="Out = X - Y floor(X / Y), of the sign of Y; of integers, unless floor is set, X - Y trunc(X / Y), of the sign "
    "of X, as in Fluid 1.8",
    source=_SOURCE,
)

binary(
    "elementwise_floordiv",
    lambda x, y, *, floor: floordiv(x, y) if floor else x / y,
    attrs=(*_UNUSED, _FLOOR),
    dtypes=_both(*ALL_INTS),
    doc="Out = trunc(X / Y), as in Fluid 1.8; floor(X / Y), as Python's //, if floor is set",
    source=_SOURCE,
)

# minus has no axis attribute in Fluid: X and Y have equal dims.
scalar_op(
    "minus",
    lambda x, y: x - y,
    Elementwise(differentiable=("X", "Y")),
    grad=lambda dout: (dout, -dout),
    dtypes=_both(*ALL_FLOATS),
    doc="Out = X - Y",
    source="Fluid minus_op.cc",
)


# scale and increment -----------------------------------------------------------------------------------------------


def _scale(x: Any, scale_tensor: Any, *, scale: Any, bias: Any, bias_after_scale: bool) -> Any:
    factor = scale if scale_tensor is None else scale_tensor
    return x * factor + bias if bias_after_scale else (x + bias) * factor


def _infer_scale(call: Call) -> Inferred:
    one_number(call, "ScaleTensor", like="X")
    for name in ("bias",) if call.has("ScaleTensor") else ("scale", "bias"):
        number_fits(call, name, call.dtype("X"))
    return {"Out": spec_like(call.spec("X"))}


def _scale_grad(maker: Any) -> None:
    inputs = {"X": maker.output_grad("Out")}
    if maker.count("ScaleTensor"):
        inputs["ScaleTensor"] = maker.input("ScaleTensor")
    maker.op("scale", inputs, {"Out": maker.input_grad("X")}, {"scale": maker.attr("scale")})


def _infer_increment(call: Call) -> Inferred:
    number_fits(call, "step", call.dtype("X"))
    return {"Out": spec_like(call.spec("X"))}


unary(
    "scale",
    _scale,
    Differentiation(no_gradient={"ScaleTensor": "layers.elementwise_mul(x, factor), whose factor has a gradient"}),
    Inference(_infer_scale),
    Aliasing(may={"Out": "X"}),
    Elementwise(
        slots=[
            Slot(
                "ScaleTensor", dispensable=True, doc="[1]: the factor instead of scale; no derivative is defined for it"
            )
        ]
    ),
    grad=_scale_grad,
    dtypes={"X": _NUMBERS, "ScaleTensor": _NUMBERS},
    attrs=(
        Attr("scale", "float", 1.0),
        Attr("bias", "float", 0.0),
        Attr("bias_after_scale", "bool", True, doc="False: Out = scale (X + bias)"),
    ),
    doc="Out = scale X + bias, or scale (X + bias); if X is of integers, scale and bias lose their fractions",
    source="Fluid scale_op.cc",
)

unary(
    "increment",
    lambda x, *, step: x + step,
    Inference(_infer_increment),
    Aliasing(may={"Out": "X"}),
    grad=copy_back,
    dtypes={"X": _NUMBERS},
    attrs=(Attr("step", "float", 1.0),),
    doc="Out = X + step; if X is of integers, so is step, without its fraction",
    source="Fluid increment_op.cc",
)
