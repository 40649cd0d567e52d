"""Elementwise operators on one tensor: each is a function of scalars, and so is its gradient.

``abs_`` and the like are the expression's functions; numbers in an expression take X's dtype.
"""

from __future__ import annotations

from math import pi
from math import sqrt as root
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.codegen.expr import (
    abs_,
    ceil,
    cos,
    erf,
    exp,
    expm1,
    floor,
    log,
    log1p,
    logical_and,
    maximum,
    minimum,
    pow_,
    round_,
    sign,
    sin,
    sqrt,
    tanh,
    where,
    zeros,
)
from fluidlite.framework.opdef import Attr
from fluidlite.operators.samples import point, unary_samples
from fluidlite.operators.scalar_op import unary

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
      grad=lambda x, dout, *, alpha: where(x >= alpha * x, dout, alpha * dout), dtypes=_FLOATS,
      reference=point(lambda x, alpha: np.maximum(x, alpha * x)),
      samples=unary_samples(avoid=(0,), attrs=({}, {"alpha": 0.3})),
      doc="Out = max(X, alpha X)", source=_SOURCE)  # fmt: skip

unary("elu", lambda x, *, alpha: where(x > 0, x, alpha * expm1(minimum(x, 0))),
      attrs=(Attr("alpha", "float", 1.0),), dtypes=_FLOATS,
      grad=lambda x, out, dout, *, alpha: where(x > 0, dout, dout * (out + alpha)),
      reference=point(lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))),
      samples=unary_samples(avoid=(0,), attrs=({}, {"alpha": 0.4})),
      doc="Out = X if X > 0, else alpha (exp(X) - 1)", source=_SOURCE)  # fmt: skip

unary("pow", lambda x, *, factor: pow_(x, factor), attrs=(Attr("factor", "float", 1.0),), dtypes=_FLOATS,
      grad=lambda x, dout, *, factor: dout * factor * pow_(x, factor - 1),
      reference=point(lambda x, factor: np.power(x, factor)),
      samples=unary_samples(0.3, 2, attrs=({}, {"factor": 2.5}, {"factor": -1.0})),
      doc="Out = X ^ factor", source=_SOURCE)  # fmt: skip

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

# An X below min counts as min first, so that min > max gives max, as std::min(std::max()) would.
unary("clip", lambda x, *, min, max: minimum(maximum(x, min), max), dtypes=_FLOATS,
      attrs=(Attr("min", "float"), Attr("max", "float")),
      grad=lambda x, dout, *, min, max: where(logical_and(x > min, x < max), dout, 0),
      reference=point(lambda x, min, max: np.minimum(np.maximum(x, min), max)),
      samples=unary_samples(avoid=(-1, -0.5, 0.5, 1), attrs=({"min": -0.5, "max": 1.0}, {"min": -1.0, "max": 0.5})),
      doc="Out = min(max(X, min), max)", source="Fluid clip_op.h")  # fmt: skip

unary("soft_relu", lambda x, *, threshold: log1p(exp(maximum(minimum(x, threshold), -threshold))),
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

unary("hard_shrink", lambda x, *, threshold: where(abs_(x) > threshold, x, 0), dtypes=_FLOATS,
      attrs=(Attr("threshold", "float", 0.5),),
      grad=lambda x, dout, *, threshold: where(abs_(x) > threshold, dout, 0),
      reference=point(lambda x, threshold: x * (np.abs(x) > threshold)),
      samples=unary_samples(avoid=(-1, -0.5, 0.5, 1), attrs=({}, {"threshold": 1.0})),
      doc="Out = X if |X| > threshold, else 0", source=_SOURCE)  # fmt: skip

unary("thresholded_relu", lambda x, *, threshold: where(x > threshold, x, 0), dtypes=_FLOATS,
      attrs=(Attr("threshold", "float", 1.0),),
      grad=lambda x, dout, *, threshold: where(x > threshold, dout, 0),
      reference=point(lambda x, threshold: x * (x > threshold)),
      samples=unary_samples(avoid=(-0.5, 1), attrs=({}, {"threshold": -0.5})),
      doc="Out = X if X > threshold, else 0", source=_SOURCE)  # fmt: skip

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
    from math import erf as exact

    if approximate:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.asarray([exact(v / root(2)) for v in x.reshape(-1)]).reshape(x.shape))


unary("gelu", _gelu, attrs=(Attr("approximate", "bool", False, doc="by tanh"),), grad=_gelu_grad, dtypes=_FLOATS,
      reference=point(_gelu_reference), samples=unary_samples(attrs=({}, {"approximate": True})),
      doc="Out = X Phi(X), Phi the normal distribution function", source="Fluid gelu_op.h")  # fmt: skip
