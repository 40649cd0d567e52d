"""Elementwise operators on one tensor, each declared as a scalar function with a scalar gradient function.

Python numbers in an expression take X's dtype.
"""

from __future__ import annotations

from functools import partial
from math import pi, sqrt as root
from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.derivative_rules import power_slope
from fluidlite.operators.inference import one_number
from fluidlite.operators.scalar_op import Elementwise, scalar_op, unary
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Differentiation, Inference
from fluidlite.tensor.tensor_spec import Spec

_FLOATS = {"X": ALL_FLOATS}
_SOURCE = "Fluid activation_op.h"
activation = partial(unary, dtypes=_FLOATS, source=_SOURCE)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + e.exp(-x))


_SHRINK_NUMERATOR = (218243025, 16081065, 289575, 1430, 1)
_SHRINK_DENOMINATOR = (654729075, 310134825, 18918900, 315315, 1485, 1)
"""Coefficients from Lambert's continued fraction tanh(x) = x / (1 + z / (3 + z / (5 + ...))), z = x * x, truncated at
19: 1 - tanh(x) / x is z times the first polynomial over the second."""


def _polynomial(z: Any, coefficients: tuple[int, ...]) -> Any:
    total: Any = float(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * z + float(coefficient)
    return total


def _tanh_shrink(x: Any) -> Any:
    """Return x - tanh(x), without cancellation where X is small."""
    z = x * x
    small = x * (z * _polynomial(z, _SHRINK_NUMERATOR) / _polynomial(z, _SHRINK_DENOMINATOR))
    return e.where(e.abs_(x) < 1, small, x - e.tanh(x))


def _zero_gradient(dout: Any) -> Any:
    """Return the gradient of a step function."""
    return e.zeros_like(dout)


# Without attributes ------------------------------------------------------------------------------------------------

activation("relu", lambda x: e.maximum(x, 0), grad=lambda out, dout: e.where(out > 0, dout, 0), doc="Out = max(X, 0)")

activation("sigmoid", _sigmoid, grad=lambda out, dout: dout * out * (1 - out), doc="Out = 1 / (1 + exp(-X))")

activation(
    "logsigmoid",
    lambda x: e.minimum(x, 0) - e.log1p(e.exp(-e.abs_(x))),
    grad=lambda x, dout: dout / (1 + e.exp(x)),
    doc="Out = log(1 / (1 + exp(-X)))",
)

activation("tanh", e.tanh, grad=lambda out, dout: dout * (1 - out * out), doc="Out = tanh(X)")

activation("tanh_shrink", _tanh_shrink, grad=lambda x, dout: dout * e.tanh(x) * e.tanh(x), doc="Out = X - tanh(X)")

activation("exp", e.exp, grad=lambda out, dout: dout * out, doc="Out = e ^ X")

activation("log", e.log, grad=lambda x, dout: dout / x, doc="Out = ln(X)")

activation("sqrt", e.sqrt, grad=lambda out, dout: 0.5 * dout / out, doc="Out = sqrt(X)")

activation(
    "square", lambda x: x * x, grad=lambda x, dout: 2 * dout * x, dtypes={"X": (*ALL_FLOATS, *INTS)}, doc="Out = X X"
)

activation("abs", e.abs_, grad=lambda x, dout: dout * e.sign(x), dtypes={"X": (*ALL_FLOATS, *INTS)}, doc="Out = |X|")

activation("reciprocal", lambda x: 1 / x, grad=lambda out, dout: -dout * out * out, doc="Out = 1 / X")

activation(
    "softplus",
    lambda x: e.maximum(x, 0) + e.log1p(e.exp(-e.abs_(x))),
    grad=lambda x, dout: dout / (1 + e.exp(-x)),
    doc="Out = ln(1 + exp(X))",
)

activation(
    "softsign",
    lambda x: x / (1 + e.abs_(x)),
    grad=lambda x, dout: dout * (1 / (1 + e.abs_(x))) * (1 / (1 + e.abs_(x))),
    doc="Out = X / (1 + |X|)",
)

activation("sin", e.sin, grad=lambda x, dout: dout * e.cos(x), doc="Out = sin(X)")

activation("cos", e.cos, grad=lambda x, dout: -dout * e.sin(x), doc="Out = cos(X)")


activation(
    "asin",
    e.asin,
    grad=lambda x, dout: dout / e.sqrt((1 - x) * (1 + x)),
    doc="Out = the angle in [-pi/2, pi/2] whose sine is X",
)

activation(
    "acos",
    e.acos,
    grad=lambda x, dout: -dout / e.sqrt((1 - x) * (1 + x)),
    doc="Out = the angle in [0, pi] whose cosine is X",
)

activation(
    "atan", e.atan, grad=lambda x, dout: dout / (1 + x * x), doc="Out = the angle in [-pi/2, pi/2] whose tangent is X"
)

activation("sinh", e.sinh, grad=lambda x, dout: dout * e.cosh(x), doc="Out = (exp(X) - exp(-X)) / 2")

activation("cosh", e.cosh, grad=lambda x, dout: dout * e.sinh(x), doc="Out = (exp(X) + exp(-X)) / 2")

activation("rsqrt", e.rsqrt, grad=lambda out, dout: -0.5 * dout * out * out * out, doc="Out = 1 / sqrt(X)")

activation("log1p", e.log1p, grad=lambda x, dout: dout / (1 + x), doc="Out = ln(1 + X)")


activation(
    "erf",
    e.erf,
    grad=lambda x, dout: dout * e.exp(-x * x) * (2 / root(pi)),
    doc="Out = 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to X",
    source="Fluid erf_op.cc",
)


activation("floor", e.floor, grad=_zero_gradient, doc="Out = the largest integer that is not above X")

activation("ceil", e.ceil, grad=_zero_gradient, doc="Out = the smallest integer that is not below X")

activation("round", e.round_, grad=_zero_gradient, doc="Out = the nearest integer to X, halves away from 0")

activation("sign", e.sign, grad=_zero_gradient, doc="Out = -1, 0 or 1, the sign of X", source="Fluid sign_op.cc")

# With attributes ---------------------------------------------------------------------------------------------------

activation(
    "leaky_relu",
    lambda x, *, alpha: e.maximum(x, alpha * x),
    attrs=(Attr("alpha", "float", 0.02),),
    grad=lambda x, dout, *, alpha: e.where(e.where(alpha > 1, -x, x) < 0, alpha * dout, dout),
    doc="Out = max(X, alpha X)",
)

# At 0 the gradient is 0, as Fluid has it.
activation(
    "elu",
    lambda x, *, alpha: e.where(x > 0, x, alpha * e.expm1(x)),
    attrs=(Attr("alpha", "float", 1.0),),
    grad=lambda x, out, dout, *, alpha: e.where(x > 0, dout, e.where(x < 0, dout * (out + alpha), 0)),
    doc="Out = X if X > 0, else alpha (exp(X) - 1)",
)


def _exponent(factor_tensor: Any, factor: Any) -> Any:
    return factor if factor_tensor is None else factor_tensor


def _pow_infer(call: Call) -> dict[str, Spec]:
    one_number(call, "FactorTensor")
    return {"Out": call.spec("X")}


scalar_op(
    "pow",
    lambda x, factor_tensor, *, factor: e.pow_(x, _exponent(factor_tensor, factor)),
    Differentiation(no_gradient={"FactorTensor": "layers.elementwise_pow(x, y), whose exponent has a gradient"}),
    Inference(_pow_infer),
    Aliasing(may={"Out": "X"}),
    Elementwise(slots=[Slot("FactorTensor", dispensable=True, doc="[1]: the exponent instead of factor")]),
    attrs=(Attr("factor", "float", 1.0),),
    dtypes={"X": ALL_FLOATS, "FactorTensor": ALL_FLOATS},
    grad=lambda x, factor_tensor, dout, *, factor: dout * power_slope(x, _exponent(factor_tensor, factor)),
    doc="Out = X ^ factor",
    source=_SOURCE,
)

activation(
    "relu6",
    lambda x, *, threshold: e.minimum(e.maximum(x, 0), threshold),
    attrs=(Attr("threshold", "float", 6.0),),
    grad=lambda out, dout, *, threshold: e.where(e.logical_and(out > 0, out < threshold), dout, 0),
    doc="Out = min(max(X, 0), threshold)",
)

activation(
    "brelu",
    lambda x, *, t_min, t_max: e.minimum(e.maximum(x, t_min), t_max),
    attrs=(Attr("t_min", "float", 0.0), Attr("t_max", "float", 24.0)),
    grad=lambda x, dout, *, t_min, t_max: e.where(e.logical_and(x > t_min, x < t_max), dout, 0),
    doc="Out = min(max(X, t_min), t_max)",
)


def _clip_infer(call: Call) -> dict[str, Spec]:
    for slot in ("Min", "Max"):
        one_number(call, slot, like="X")
    return {"Out": call.spec("X")}


def _limits(min_: Any, max_: Any, low: Any, high: Any) -> tuple[Any, Any]:
    return low if min_ is None else min_, high if max_ is None else max_


def _clip(x: Any, min_: Any, max_: Any, *, min: Any, max: Any) -> Any:
    low, high = _limits(min_, max_, min, max)
    return e.minimum(e.maximum(x, low), high)


def _clip_grad(x: Any, min_: Any, max_: Any, dout: Any, *, min: Any, max: Any) -> Any:
    low, high = _limits(min_, max_, min, max)
    return e.where(e.logical_and(x > low, x < high), dout, 0)


# The lower bound is applied first, so that min > max gives max, as std::min(std::max()) does.
scalar_op(
    "clip",
    _clip,
    Differentiation(
        no_gradient={
            "Min": "layers.elementwise_max(x, low), whose bound has a gradient",
            "Max": "layers.elementwise_min(x, high), whose bound has a gradient",
        }
    ),
    Inference(_clip_infer),
    Aliasing(may={"Out": "X"}),
    Elementwise(
        slots=[
            Slot(name, dispensable=True, doc=f"[1]: the bound instead of {name.lower()}; no derivative is defined")
            for name in ("Min", "Max")
        ]
    ),
    grad=_clip_grad,
    attrs=(Attr("min", "float", doc="minimum of Out"), Attr("max", "float", doc="maximum of Out")),
    dtypes={"X": ALL_FLOATS, "Min": ALL_FLOATS, "Max": ALL_FLOATS},
    doc="Out = min(max(X, min), max)",
    source="Fluid clip_op.h",
)

# Below value the gradient is deliberately not the derivative.
activation(
    "straight_through_max",
    lambda x, *, value: e.maximum(x, value),
    Elementwise(grad_attrs=()),
    grad=lambda dout: dout,
    attrs=(Attr("value", "float", doc="the minimum of Out"),),
    doc="Out = max(X, value), with the gradient of Out = X: below value too X@GRAD = Out@GRAD",
    source="Bengio, Leonard, Courville: Estimating or propagating gradients through stochastic neurons (2013)",
)

activation(
    "soft_relu",
    lambda x, *, threshold: e.log1p(e.exp(e.minimum(e.maximum(x, -threshold), threshold))),
    attrs=(Attr("threshold", "float", 40.0),),
    grad=lambda x, out, dout, *, threshold: e.where(
        e.logical_and(x > -threshold, x < threshold), -dout * e.expm1(-out), 0
    ),
    doc="Out = ln(1 + exp(max(min(X, threshold), -threshold)))",
)


def _stanh_grad(x: Any, dout: Any, *, scale_a: Any, scale_b: Any) -> Any:
    """1 - tanh(y)^2 is 4 p / (1 + p)^2 of p = exp(-2 |y|), however large y is."""
    power = e.exp(-2 * e.abs_(scale_a * x))
    return dout * scale_a * scale_b * (4 * power / ((1 + power) * (1 + power)))


activation(
    "stanh",
    lambda x, *, scale_a, scale_b: scale_b * e.tanh(scale_a * x),
    attrs=(Attr("scale_a", "float", 0.67), Attr("scale_b", "float", 1.7159)),
    grad=_stanh_grad,
    doc="Out = scale_b tanh(scale_a X)",
)

activation(
    "hard_sigmoid",
    lambda x, *, slope, offset: e.minimum(e.maximum(slope * x + offset, 0), 1),
    attrs=(Attr("slope", "float", 0.2), Attr("offset", "float", 0.5)),
    grad=lambda out, dout, *, slope, offset: e.where(e.logical_and(out > 0, out < 1), dout * slope, 0),
    doc="Out = min(max(slope X + offset, 0), 1)",
)

activation(
    "hard_shrink",
    lambda x, *, threshold: e.where(e.abs_(x) <= threshold, 0, x),
    attrs=(Attr("threshold", "float", 0.5),),
    grad=lambda x, dout, *, threshold: e.where(e.abs_(x) > threshold, dout, 0),
    doc="Out = X if |X| > threshold, else 0",
)

activation(
    "thresholded_relu",
    lambda x, *, threshold: e.where(x <= threshold, 0, x),
    attrs=(Attr("threshold", "float", 1.0),),
    grad=lambda x, dout, *, threshold: e.where(x > threshold, dout, 0),
    doc="Out = X if X > threshold, else 0",
)

activation(
    "softshrink",
    lambda x, *, lambda_: x - e.maximum(e.minimum(x, lambda_), -lambda_),
    attrs=(Attr("lambda", "float", 0.5),),
    grad=lambda x, dout, *, lambda_: e.where(e.logical_or(x > lambda_, x < -lambda_), dout, 0),
    doc="Out = X - lambda if X > lambda, X + lambda if X < -lambda, else 0",
)

activation(
    "hard_swish",
    lambda x, *, threshold, scale, offset: x * (e.minimum(e.maximum(x + offset, 0), threshold) / scale),
    attrs=(Attr("threshold", "float", 6.0), Attr("scale", "float", 6.0), Attr("offset", "float", 3.0)),
    grad=lambda x, dout, *, threshold, scale, offset: e.where(
        e.maximum(x + offset, 0) >= threshold,
        dout * threshold / scale,
        e.where(x + offset <= 0, 0, dout * (2 * x + offset) / scale),
    ),
    doc="Out = X min(max(X + offset, 0), threshold) / scale",
)


def _softplus(x: Any, threshold: float) -> Any:
    """softplus; above the threshold X, below its negative exp(X)."""
    middle = e.maximum(x, 0) + e.log1p(e.exp(-e.abs_(x)))
    return e.where(x > threshold, x, e.where(x < -threshold, _small_exp(x), middle))


def _small_exp(x: Any) -> Any:
    """exp(min(X, 0)): exp of a large X is infinite, and its product with a mask of 0 would be NaN."""
    return e.exp(e.minimum(x, 0))


def _mish_grad(x: Any, dout: Any, *, threshold: float) -> Any:
    t = e.tanh(_softplus(x, threshold))
    slope = e.where(x > threshold, 1, e.where(x < -threshold, _small_exp(x), 1 / (1 + e.exp(-x))))
    return dout * (t + x * (1 - t * t) * slope)


activation(
    "mish",
    lambda x, *, threshold: x * e.tanh(_softplus(x, threshold)),
    grad=_mish_grad,
    attrs=(Attr("threshold", "float", 20.0, doc="beyond it softplus counts as X, below its negative as exp(X)"),),
    doc="Out = X tanh(ln(1 + exp(X)))",
    source="Fluid mish_op.h",
)

_SELU = {"scale": 1.0507009873554804934193349852946, "alpha": 1.6732632423543772848170429916717}

activation(
    "selu",
    lambda x, *, scale, alpha: e.where(x > 0, scale * x, scale * alpha * e.expm1(x)),
    attrs=tuple(Attr(name, "float", value) for name, value in _SELU.items()),
    grad=lambda x, out, dout, *, scale, alpha: e.where(x > 0, dout * scale, dout * (out + scale * alpha)),
    doc="Out = scale (X if X > 0, else alpha (exp(X) - 1))",
    source="Fluid selu_op.h",
)


def _swish(x: Any, *, beta: Any) -> Any:
    """X e / (1 + e) for negative beta X; e = exp(-|beta X|) is a square of h, since e itself may be denormal."""
    h = e.exp(-0.5 * e.abs_(beta * x))
    part = e.where(beta * x < 0, h, 1)
    return x * part * part / (1 + h * h)


def _swish_grad(x: Any, out: Any, dout: Any, *, beta: Any) -> Any:
    """With s = 1 / (1 + exp(-beta X)), s + beta Out (1 - s)."""
    power = e.exp(-e.abs_(beta * x))
    large, small = 1 / (1 + power), power / (1 + power)
    return dout * e.where(beta * x < 0, small + beta * out * large, large + beta * out * small)


activation("swish", _swish, attrs=(Attr("beta", "float", 1.0),), grad=_swish_grad, doc="Out = X / (1 + exp(-beta X))")


_TANH_SLOPE, _TANH_CUBE = 2 * root(2 / pi), 2 * root(2 / pi) * 0.044715
"""(1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y)); 2 y is x times the first number and x^3 times the second."""


def _tanh_exponential(x: Any, z: Any) -> Any:
    """exp(-2 y), z = x * x."""
    return e.exp(x * (-_TANH_SLOPE - _TANH_CUBE * z))


def _gelu(x: Any, *, approximate: bool) -> Any:
    if approximate:
        return x / (1 + _tanh_exponential(x, x * x))
    return e.gelu(x)


def _gelu_grad(x: Any, dout: Any, *, approximate: bool) -> Any:
    if approximate:
        z = x * x
        s = 1 / (1 + _tanh_exponential(x, z))
        return dout * (s + s * (1 - s) * x * (_TANH_SLOPE + 3 * _TANH_CUBE * z))
    return dout * (e.normcdf(x) + x * e.normpdf(x))


activation(
    "gelu",
    _gelu,
    attrs=(Attr("approximate", "bool", False, doc="by tanh"),),
    grad=_gelu_grad,
    doc="Out = X Phi(X), Phi the normal distribution function",
    source="Fluid gelu_op.h",
)
