"""Elementwise operators on one tensor: each is a function of scalars, and so is its gradient.

``abs_`` and the like are the expression's functions; numbers in an expression take X's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf as exact_erf
from math import pi
from math import sqrt as root
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.codegen.expr import (
    abs_,
    acos,
    asin,
    atan,
    ceil,
    cos,
    cosh,
    erf,
    exp,
    expm1,
    floor,
    log,
    log1p,
    logical_and,
    logical_or,
    maximum,
    minimum,
    pow_,
    round_,
    rsqrt,
    sign,
    sin,
    sinh,
    sqrt,
    tanh,
    where,
    zeros,
)
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample, Slot
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import one_number
from fluidlite.operators.samples import EVERY, away_from, point, rand, unary_samples
from fluidlite.operators.scalar_op import scalar_op, unary

_FLOATS = {"X": ALL_FLOATS}
_SOURCE = "Fluid activation_op.h"


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + exp(-x))


def _nothing(dout: Any) -> Any:
    """Return the gradient of a step function."""
    return zeros(dout)


# Without attributes ------------------------------------------------------------------------------------------------

unary("relu", lambda x: maximum(x, 0), grad=lambda out, dout: where(out > 0, dout, 0), dtypes=_FLOATS,
      reference=point(lambda x: np.maximum(x, 0.0)), samples=unary_samples(avoid=(0,)),
      doc="Out = max(X, 0)", source=_SOURCE)  # fmt: skip

unary("sigmoid", _sigmoid, grad=lambda out, dout: dout * out * (1 - out), dtypes=_FLOATS,
      reference=point(lambda x: 0.5 * (1 + np.tanh(x / 2))), samples=unary_samples(-6, 6),
      doc="Out = 1 / (1 + exp(-X))", source=_SOURCE)  # fmt: skip

unary("logsigmoid", lambda x: minimum(x, 0) - log1p(exp(-abs_(x))), grad=lambda x, dout: dout / (1 + exp(x)),
      reference=point(lambda x: -np.logaddexp(0.0, -x)), samples=unary_samples(-6, 6), dtypes=_FLOATS,
      doc="Out = log(1 / (1 + exp(-X)))", source=_SOURCE)  # fmt: skip

unary("tanh", tanh, grad=lambda out, dout: dout * (1 - out * out), dtypes=_FLOATS,
      reference=point(np.tanh), samples=unary_samples(),
      doc="Out = tanh(X)", source=_SOURCE)  # fmt: skip

unary("tanh_shrink", lambda x: x - tanh(x), grad=lambda x, dout: dout * tanh(x) * tanh(x), dtypes=_FLOATS,
      reference=point(lambda x: x - np.tanh(x)), samples=unary_samples(),
      doc="Out = X - tanh(X)", source=_SOURCE)  # fmt: skip

unary("exp", exp, grad=lambda out, dout: dout * out, dtypes=_FLOATS,
      reference=point(np.exp), samples=unary_samples(),
      doc="Out = e ^ X", source=_SOURCE)  # fmt: skip

unary("log", log, grad=lambda x, dout: dout / x, dtypes=_FLOATS,
      reference=point(np.log), samples=unary_samples(0.2, 3),
      doc="Out = ln(X)", source=_SOURCE)  # fmt: skip

unary("sqrt", sqrt, grad=lambda out, dout: 0.5 * dout / out, dtypes=_FLOATS,
      reference=point(np.sqrt), samples=unary_samples(0.2, 3),
      doc="Out = sqrt(X)", source=_SOURCE)  # fmt: skip

unary("square", lambda x: x * x, grad=lambda x, dout: 2 * dout * x, dtypes={"X": (*ALL_FLOATS, *INTS)},
      reference=point(np.square), samples=unary_samples(),
      doc="Out = X X", source=_SOURCE)  # fmt: skip

unary("abs", abs_, grad=lambda x, dout: dout * sign(x), dtypes={"X": (*ALL_FLOATS, *INTS)},
      reference=point(np.abs), samples=unary_samples(avoid=(0,)),
      doc="Out = |X|", source=_SOURCE)  # fmt: skip

unary("reciprocal", lambda x: 1 / x, grad=lambda out, dout: -dout * out * out, dtypes=_FLOATS,
      reference=point(np.reciprocal), samples=unary_samples(0.3, 2),
      doc="Out = 1 / X", source=_SOURCE)  # fmt: skip

unary("softplus", lambda x: maximum(x, 0) + log1p(exp(-abs_(x))), grad=lambda x, dout: dout / (1 + exp(-x)),
      reference=point(lambda x: np.logaddexp(0.0, x)), samples=unary_samples(-6, 6), dtypes=_FLOATS,
      doc="Out = ln(1 + exp(X))", source=_SOURCE)  # fmt: skip

unary("softsign", lambda x: x / (1 + abs_(x)), grad=lambda x, dout: dout / ((1 + abs_(x)) * (1 + abs_(x))),
      reference=point(lambda x: x / (1 + np.abs(x))), samples=unary_samples(), dtypes=_FLOATS,
      doc="Out = X / (1 + |X|)", source=_SOURCE)  # fmt: skip

unary("sin", sin, grad=lambda x, dout: dout * cos(x), dtypes=_FLOATS,
      reference=point(np.sin), samples=unary_samples(-4, 4),
      doc="Out = sin(X)", source=_SOURCE)  # fmt: skip

unary("cos", cos, grad=lambda x, dout: -dout * sin(x), dtypes=_FLOATS,
      reference=point(np.cos), samples=unary_samples(-4, 4),
      doc="Out = cos(X)", source=_SOURCE)  # fmt: skip

_INSIDE = unary_samples(-0.95, 0.95)

unary("asin", asin, grad=lambda x, dout: dout / sqrt((1 - x) * (1 + x)), dtypes=_FLOATS,
      reference=point(np.arcsin), samples=_INSIDE,
      doc="Out = the angle in [-pi/2, pi/2] whose sine is X", source=_SOURCE)  # fmt: skip

unary("acos", acos, grad=lambda x, dout: -dout / sqrt((1 - x) * (1 + x)), dtypes=_FLOATS,
      reference=point(np.arccos), samples=_INSIDE,
      doc="Out = the angle in [0, pi] whose cosine is X", source=_SOURCE)  # fmt: skip

unary("atan", atan, grad=lambda x, dout: dout / (1 + x * x), dtypes=_FLOATS,
      reference=point(np.arctan), samples=unary_samples(-4, 4),
      doc="Out = the angle in [-pi/2, pi/2] whose tangent is X", source=_SOURCE)  # fmt: skip

unary("sinh", sinh, grad=lambda x, dout: dout * cosh(x), dtypes=_FLOATS,
      reference=point(np.sinh), samples=unary_samples(),
      doc="Out = (exp(X) - exp(-X)) / 2", source=_SOURCE)  # fmt: skip

unary("cosh", cosh, grad=lambda x, dout: dout * sinh(x), dtypes=_FLOATS,
      reference=point(np.cosh), samples=unary_samples(),
      doc="Out = (exp(X) + exp(-X)) / 2", source=_SOURCE)  # fmt: skip

unary("rsqrt", rsqrt, grad=lambda out, dout: -0.5 * dout * out * out * out, dtypes=_FLOATS,
      reference=point(lambda x: 1 / np.sqrt(x)), samples=unary_samples(0.3, 3),
      doc="Out = 1 / sqrt(X)", source=_SOURCE)  # fmt: skip

unary("log1p", log1p, grad=lambda x, dout: dout / (1 + x), dtypes=_FLOATS,
      reference=point(np.log1p), samples=unary_samples(-0.7, 3),
      doc="Out = ln(1 + X)", source=_SOURCE)  # fmt: skip


def _erf_reference(x: Any) -> Any:
    return np.asarray([exact_erf(v) for v in x.reshape(-1)]).reshape(x.shape)


unary("erf", erf, grad=lambda x, dout: dout * exp(-x * x) * (2 / root(pi)), dtypes=_FLOATS,
      reference=point(_erf_reference), samples=unary_samples(),
      doc="Out = 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to X", source="Fluid erf_op.cc")  # fmt: skip

_STEPS = unary_samples(-2.4, 2.4, avoid=(-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2))

unary("floor", floor, grad=_nothing, reference=point(np.floor), samples=_STEPS, dtypes=_FLOATS,
      doc="Out = the largest integer that is not above X", source=_SOURCE)  # fmt: skip

unary("ceil", ceil, grad=_nothing, reference=point(np.ceil), samples=_STEPS, dtypes=_FLOATS,
      doc="Out = the smallest integer that is not below X", source=_SOURCE)  # fmt: skip

unary("round", round_, grad=_nothing, samples=_STEPS, dtypes=_FLOATS,
      reference=point(lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5)),
      doc="Out = the nearest integer to X, halves away from 0", source=_SOURCE)  # fmt: skip

unary("sign", sign, grad=_nothing, reference=point(np.sign), samples=unary_samples(avoid=(0,)), dtypes=_FLOATS,
      doc="Out = -1, 0 or 1, the sign of X", source="Fluid sign_op.cc")  # fmt: skip

# With attributes ---------------------------------------------------------------------------------------------------

unary("leaky_relu", lambda x, *, alpha: maximum(x, alpha * x), attrs=(Attr("alpha", "float", 0.02),),
      grad=lambda x, dout, *, alpha: where(x < 0, alpha * dout, dout), dtypes=_FLOATS,
      reference=point(lambda x, alpha: np.maximum(x, alpha * x)),
      samples=unary_samples(avoid=(0,), attrs=({}, {"alpha": 0.3})),
      doc="Out = max(X, alpha X)", source=_SOURCE)  # fmt: skip

# At 0 the gradient is 0, as Fluid has it.
unary("elu", lambda x, *, alpha: maximum(x, 0) + alpha * expm1(minimum(x, 0)),
      attrs=(Attr("alpha", "float", 1.0),), dtypes=_FLOATS,
      grad=lambda x, out, dout, *, alpha: where(x > 0, dout, where(x < 0, dout * (out + alpha), 0)),
      reference=point(lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))),
      samples=unary_samples(avoid=(0,), attrs=({}, {"alpha": 0.4})),
      doc="Out = X if X > 0, else alpha (exp(X) - 1)", source=_SOURCE)  # fmt: skip


def _exponent(factor_tensor: Any, factor: Any) -> Any:
    return factor if factor_tensor is None else factor_tensor


def _pow_infer(call: Call) -> dict[str, Spec]:
    one_number(call, "FactorTensor")
    return {"Out": call.spec("X")}


def _pow_reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    factor = inputs["FactorTensor"].reshape(()) if "FactorTensor" in inputs else attrs["factor"]
    return {"Out": np.power(inputs["X"], factor)}


scalar_op(
    "pow", lambda x, factor_tensor, *, factor: pow_(x, _exponent(factor_tensor, factor)), infer=_pow_infer,
    slots={"FactorTensor": Slot("FactorTensor", dispensable=True, doc="[1]: the exponent instead of factor")},
    attrs=(Attr("factor", "float", 1.0),), dtypes={"X": ALL_FLOATS, "FactorTensor": ALL_FLOATS}, may_alias={"Out": "X"},
    grad=lambda x, factor_tensor, dout, *, factor: (
        dout * _exponent(factor_tensor, factor) * pow_(x, _exponent(factor_tensor, factor) - 1)
    ),
    reference=_pow_reference,
    samples=lambda: [
        *unary_samples(0.3, 2, attrs=({}, {"factor": 2.5}, {"factor": -1.0}))(),
        Sample({"X": rand(5, 7, low=0.3, high=2), "FactorTensor": rand(1, low=2, high=3)}, {"factor": 9.0}, ("X",),
               name="factor_tensor", dtypes=EVERY),
    ],
    doc="Out = X ^ factor", source=_SOURCE,
)  # fmt: skip

unary("relu6", lambda x, *, threshold: minimum(maximum(x, 0), threshold), attrs=(Attr("threshold", "float", 6.0),),
      grad=lambda out, dout, *, threshold: where(logical_and(out > 0, out < threshold), dout, 0), dtypes=_FLOATS,
      reference=point(lambda x, threshold: np.clip(x, 0, threshold)),
      samples=unary_samples(-3, 9, avoid=(0, 2, 6), attrs=({}, {"threshold": 2.0})),
      doc="Out = min(max(X, 0), threshold)", source=_SOURCE)  # fmt: skip

unary("brelu", lambda x, *, t_min, t_max: minimum(maximum(x, t_min), t_max), dtypes=_FLOATS,
      attrs=(Attr("t_min", "float", 0.0), Attr("t_max", "float", 24.0)),
      grad=lambda x, dout, *, t_min, t_max: where(logical_and(x > t_min, x < t_max), dout, 0),
      reference=point(lambda x, t_min, t_max: np.minimum(np.maximum(x, t_min), t_max)),
      samples=unary_samples(-3, 30, avoid=(0, 1, 8, 24), attrs=({}, {"t_min": 1.0}, {"t_max": 8.0})),
      doc="Out = min(max(X, t_min), t_max)", source=_SOURCE)  # fmt: skip


def _clip_infer(call: Call) -> dict[str, Spec]:
    for slot in ("Min", "Max"):
        one_number(call, slot, like="X")
    return {"Out": call.spec("X")}


def _limits(min_: Any, max_: Any, low: Any, high: Any) -> tuple[Any, Any]:
    return low if min_ is None else min_, high if max_ is None else max_


def _clip(x: Any, min_: Any, max_: Any, *, min: Any, max: Any) -> Any:
    low, high = _limits(min_, max_, min, max)
    return minimum(maximum(x, low), high)


def _clip_grad(x: Any, min_: Any, max_: Any, dout: Any, *, min: Any, max: Any) -> Any:
    low, high = _limits(min_, max_, min, max)
    return where(logical_and(x > low, x < high), dout, 0)


def _clip_reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    low, high = inputs.get("Min", attrs["min"]), inputs.get("Max", attrs["max"])
    return {"Out": np.where(inputs["X"] > high, high, np.where(inputs["X"] < low, low, inputs["X"]))}


def _clip_samples() -> list[Sample]:
    far, attrs = (-1, -0.5, 0.5, 1), {"min": -0.5, "max": 1.0}
    low, high = np.asarray([-1.0], "float32"), np.asarray([0.5], "float32")
    x = away_from(rand(5, 7, low=-2, high=2), *far)
    return [
        *unary_samples(avoid=far, attrs=(attrs, {"min": -1.0, "max": 0.5}))(),
        Sample({"X": x, "Min": low, "Max": high}, attrs, ("X",), name="tensors", dtypes=EVERY),
        Sample({"X": x, "Min": low}, attrs, ("X",), name="min_tensor"),
        Sample({"X": x, "Max": high}, attrs, ("X",), name="max_tensor"),
    ]


# An X below min counts as min first, so that min > max gives max, as std::min(std::max()) would.
scalar_op(
    "clip", _clip, infer=_clip_infer, may_alias={"Out": "X"}, grad=_clip_grad,
    slots={name: Slot(name, dispensable=True, doc=f"[1]: the bound instead of {name.lower()}; it gets no gradient")
           for name in ("Min", "Max")},
    attrs=(Attr("min", "float", doc="least value of Out"), Attr("max", "float", doc="greatest value of Out")),
    dtypes={"X": ALL_FLOATS, "Min": ALL_FLOATS, "Max": ALL_FLOATS}, reference=_clip_reference, samples=_clip_samples,
    doc="Out = min(max(X, min), max)", source="Fluid clip_op.h",
)  # fmt: skip

unary("soft_relu", lambda x, *, threshold: log1p(exp(minimum(maximum(x, -threshold), threshold))),
      attrs=(Attr("threshold", "float", 40.0),), dtypes=_FLOATS,
      grad=lambda x, out, dout, *, threshold: where(logical_and(x > -threshold, x < threshold), -dout * expm1(-out), 0),
      reference=point(lambda x, threshold: np.log1p(np.exp(np.clip(x, -threshold, threshold)))),
      samples=unary_samples(avoid=(-1, 1), attrs=({}, {"threshold": 1.0})),
      doc="Out = ln(1 + exp(max(min(X, threshold), -threshold)))", source=_SOURCE)  # fmt: skip

unary("stanh", lambda x, *, scale_a, scale_b: scale_b * tanh(scale_a * x), dtypes=_FLOATS,
      attrs=(Attr("scale_a", "float", 2.0 / 3.0), Attr("scale_b", "float", 1.7159)),
      grad=lambda x, dout, *, scale_a, scale_b: dout * scale_a * scale_b * (1 - tanh(scale_a * x) * tanh(scale_a * x)),
      reference=point(lambda x, scale_a, scale_b: scale_b * np.tanh(scale_a * x)),
      samples=unary_samples(attrs=({}, {"scale_a": 0.9}, {"scale_b": 1.2})),
      doc="Out = scale_b tanh(scale_a X)", source=_SOURCE)  # fmt: skip

unary("hard_sigmoid", lambda x, *, slope, offset: minimum(maximum(slope * x + offset, 0), 1), dtypes=_FLOATS,
      attrs=(Attr("slope", "float", 0.2), Attr("offset", "float", 0.5)),
      grad=lambda out, dout, *, slope, offset: where(logical_and(out > 0, out < 1), dout * slope, 0),
      reference=point(lambda x, slope, offset: np.clip(slope * x + offset, 0, 1)),
      samples=unary_samples(-4, 4, avoid=(-2.5, -2, 0.8, 1.25, -1.25, 2.5, 3),
                            attrs=({}, {"slope": 0.4}, {"offset": 0.4})),
      doc="Out = min(max(slope X + offset, 0), 1)", source=_SOURCE)  # fmt: skip

unary("hard_shrink", lambda x, *, threshold: where(abs_(x) <= threshold, 0, x), dtypes=_FLOATS,
      attrs=(Attr("threshold", "float", 0.5),),
      grad=lambda x, dout, *, threshold: where(abs_(x) > threshold, dout, 0),
      reference=point(lambda x, threshold: x * (np.abs(x) > threshold)),
      samples=unary_samples(avoid=(-1, -0.5, 0.5, 1), attrs=({}, {"threshold": 1.0})),
      doc="Out = X if |X| > threshold, else 0", source=_SOURCE)  # fmt: skip

unary("thresholded_relu", lambda x, *, threshold: where(x <= threshold, 0, x), dtypes=_FLOATS,
      attrs=(Attr("threshold", "float", 1.0),),
      grad=lambda x, dout, *, threshold: where(x > threshold, dout, 0),
      reference=point(lambda x, threshold: x * (x > threshold)),
      samples=unary_samples(avoid=(-0.5, 1), attrs=({}, {"threshold": -0.5})),
      doc="Out = X if X > threshold, else 0", source=_SOURCE)  # fmt: skip

unary("softshrink", lambda x, *, lambda_: x - maximum(minimum(x, lambda_), -lambda_),
      attrs=(Attr("lambda", "float", 0.5),), dtypes=_FLOATS,
      grad=lambda x, dout, *, lambda_: where(logical_or(x > lambda_, x < -lambda_), dout, 0),
      reference=lambda inputs, attrs: {
          "Out": np.sign(inputs["X"]) * np.maximum(np.abs(inputs["X"]) - attrs["lambda"], 0)
      },
      samples=unary_samples(avoid=(-1, -0.5, 0.5, 1), attrs=({}, {"lambda": 1.0})),
      doc="Out = X - lambda if X > lambda, X + lambda if X < -lambda, else 0", source=_SOURCE)  # fmt: skip

unary("hard_swish",
      lambda x, *, threshold, scale, offset: x * minimum(maximum(x + offset, 0), threshold) / scale, dtypes=_FLOATS,
      attrs=(Attr("threshold", "float", 6.0), Attr("scale", "float", 6.0), Attr("offset", "float", 3.0)),
      grad=lambda x, dout, *, threshold, scale, offset: where(
          x + offset <= 0, 0, where(x + offset < threshold, dout * (2 * x + offset) / scale, dout * threshold / scale)
      ),
      reference=point(lambda x, threshold, scale, offset: x * np.clip(x + offset, 0, threshold) / scale),
      samples=unary_samples(-5, 5, avoid=(-3, 3, -2, 4, 1),
                            attrs=({}, {"threshold": 4.0}, {"scale": 3.0}, {"offset": 2.0})),
      doc="Out = X min(max(X + offset, 0), threshold) / scale", source=_SOURCE)  # fmt: skip


def _soft(x: Any, threshold: float) -> Any:
    """softplus, which far from 0 is X, or exp(X)."""
    middle = maximum(x, 0) + log1p(exp(-abs_(x)))
    return where(x > threshold, x, where(x < -threshold, exp(x), middle))


def _mish_grad(x: Any, dout: Any, *, threshold: float) -> Any:
    t = tanh(_soft(x, threshold))
    slope = where(x > threshold, 1, where(x < -threshold, exp(x), 1 / (1 + exp(-x))))
    return dout * (t + x * (1 - t * t) * slope)


def _mish_reference(x: Any, threshold: float) -> Any:
    soft = np.where(x > threshold, x, np.where(x < -threshold, np.exp(x), np.logaddexp(0, x)))
    return x * np.tanh(soft)


unary("mish", lambda x, *, threshold: x * tanh(_soft(x, threshold)), grad=_mish_grad, dtypes=_FLOATS,
      attrs=(Attr("threshold", "float", 20.0, doc="beyond it softplus counts as X, below its negative as exp(X)"),),
      reference=point(_mish_reference), samples=unary_samples(-6, 6, avoid=(-1, 1), attrs=({}, {"threshold": 1.0})),
      doc="Out = X tanh(ln(1 + exp(X)))", source="Fluid mish_op.h")  # fmt: skip

_SELU = {"scale": 1.0507009873554804934193349852946, "alpha": 1.6732632423543772848170429916717}

unary("selu", lambda x, *, scale, alpha: scale * maximum(x, 0) + scale * alpha * expm1(minimum(x, 0)), dtypes=_FLOATS,
      attrs=tuple(Attr(name, "float", value) for name, value in _SELU.items()),
      grad=lambda out, dout, *, scale, alpha: where(out > 0, dout * scale, dout * (out + scale * alpha)),
      reference=point(lambda x, scale, alpha: scale * np.where(x > 0, x, alpha * (np.exp(np.minimum(x, 0)) - 1))),
      samples=unary_samples(avoid=(0,), attrs=({}, {"scale": 1.5}, {"alpha": 0.7})),
      doc="Out = scale (X if X > 0, else alpha (exp(X) - 1))", source="Fluid selu_op.h")  # fmt: skip

unary("swish", lambda x, *, beta: x / (1 + exp(-beta * x)), attrs=(Attr("beta", "float", 1.0),), dtypes=_FLOATS,
      grad=lambda x, out, dout, *, beta: dout * (beta * out + (1 - beta * out) / (1 + exp(-beta * x))),
      reference=point(lambda x, beta: x * 0.5 * (1 + np.tanh(beta * x / 2))),
      samples=unary_samples(attrs=({}, {"beta": 2.0})),
      doc="Out = X / (1 + exp(-beta X))", source=_SOURCE)  # fmt: skip


def _gelu(x: Any, *, approximate: bool) -> Any:
    if approximate:
        return 0.5 * x * (1 + tanh(root(2 / pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x * root(0.5)))


def _gelu_grad(x: Any, dout: Any, *, approximate: bool) -> Any:
    if approximate:
        t = tanh(root(2 / pi) * (x + 0.044715 * x * x * x))
        return dout * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root(2 / pi) * (1 + 3 * 0.044715 * x * x))
    return dout * (0.5 * (1 + erf(x * root(0.5))) + x * exp(-0.5 * x * x) * root(0.5 / pi))


def _gelu_reference(x: Any, approximate: bool) -> Any:
    if approximate:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf_reference(x / root(2)))


unary("gelu", _gelu, attrs=(Attr("approximate", "bool", False, doc="by tanh"),), grad=_gelu_grad, dtypes=_FLOATS,
      reference=point(_gelu_reference), samples=unary_samples(attrs=({}, {"approximate": True})),
      doc="Out = X Phi(X), Phi the normal distribution function", source="Fluid gelu_op.h")  # fmt: skip
