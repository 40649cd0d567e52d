"""Fluid's uses of activations and other functions of one tensor."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
from use_table import Numbers, Use, checks_of, f32, sigmoid

N = Numbers(1)
USES: list[Use] = []


def unary(op: str, function: Callable[..., Any], *attrs: dict[str, Any], x: Any = None, grad: bool = True) -> None:
    """Uses of ``op`` with its default attributes and with others; the function's defaults are Fluid's."""
    x = N.far(3, 5) if x is None else x
    for given in ({}, *attrs):
        out = function(np.asarray(x, "float64"), **{name.replace("lambda", "lambda_"): v for name, v in given.items()})
        USES.append(Use(op, {"X": x}, {"Out": f32(out)}, given, "X" if grad else ""))


def leaky(x: Any, alpha: float = 0.02) -> Any:
    return np.where(x > 0, x, alpha * x)


def mish(x: Any, threshold: float = 20.0) -> Any:
    soft = np.where(x > threshold, x, np.where(x < -threshold, np.exp(x), np.log1p(np.exp(x))))
    return x * np.tanh(soft)


def gelu(x: Any, approximate: bool = False) -> Any:
    if approximate:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def soft_relu(x: Any, threshold: float = 40.0) -> Any:
    return np.log(1 + np.exp(np.clip(x, -threshold, threshold)))


def softshrink(x: Any, lambda_: float = 0.5) -> Any:
    return np.where(x > lambda_, x - lambda_, np.where(x < -lambda_, x + lambda_, 0))


def selu(x: Any, scale: float = 1.0507009873554804934193349852946, alpha: float = 1.6732632423543772848) -> Any:
    return scale * np.where(x > 0, x, alpha * (np.exp(x) - 1))


def scaled(x: Any, scale: float = 1.0, bias: float = 0.0, bias_after_scale: bool = True) -> Any:
    return x * scale + (bias if bias_after_scale else bias * scale)


POSITIVE = N.f(3, 5, low=0.2, high=2.0)
WIDE = N.far(4, 6, kinks=(-0.5, 0.5, 1.0, -1.0, 0.0, 2.0), low=-3, high=3)
unary("abs", np.abs)
unary("acos", np.arccos, x=N.f(3, 4, low=-0.8, high=0.8))
unary("asin", np.arcsin, x=N.f(3, 4, low=-0.8, high=0.8))
unary("atan", np.arctan)
unary("ceil", np.ceil, grad=False)
unary("floor", np.floor, grad=False)
unary("round", lambda x: np.trunc(x + np.sign(x) / 2), x=f32([0.5, -0.5, 1.5, 2.5, -2.5, 0.4, -1.6]), grad=False)
unary("sign", np.sign, x=f32([-2, 0, 3]), grad=False)
unary("cos", np.cos)
unary("cosh", np.cosh)
unary("sin", np.sin)
unary("sinh", np.sinh)
unary("erf", np.vectorize(erf))
unary("exp", np.exp)
unary("log", np.log, x=POSITIVE)
unary("log1p", np.log1p, x=POSITIVE)
unary("sqrt", np.sqrt, x=POSITIVE)
unary("rsqrt", lambda x: 1 / np.sqrt(x), x=POSITIVE)
unary("reciprocal", lambda x: 1 / x, x=POSITIVE)
unary("square", np.square)
unary("tanh", np.tanh)
unary("tanh_shrink", lambda x: x - np.tanh(x))
unary("sigmoid", sigmoid)
unary("logsigmoid", lambda x: np.log(sigmoid(x)))
unary("softplus", lambda x: np.log(1 + np.exp(x)))
unary("softsign", lambda x: x / (1 + np.abs(x)))
unary("relu", lambda x: np.maximum(x, 0))
unary("relu6", lambda x, threshold=6.0: np.clip(x, 0, threshold), {"threshold": 0.5}, x=WIDE)
unary("brelu", lambda x, t_min=0.0, t_max=24.0: np.clip(x, t_min, t_max), {"t_min": -0.3, "t_max": 1.2}, x=WIDE)
unary("leaky_relu", leaky, {"alpha": 0.5})
unary("elu", lambda x, alpha=1.0: np.where(x > 0, x, alpha * (np.exp(x) - 1)), {"alpha": 0.3})
unary("selu", selu, {"scale": 1.5, "alpha": 2.0})
unary("gelu", gelu, {"approximate": True})
unary("hard_shrink", lambda x, threshold=0.5: x * (np.abs(x) > threshold), {"threshold": 1.0}, x=WIDE)
unary("hard_sigmoid", lambda x, slope=0.2, offset=0.5: np.clip(slope * x + offset, 0, 1), {"slope": 0.4, "offset": 0.3})
unary(
    "hard_swish", lambda x, threshold=6.0, scale=6.0, offset=3.0: x * np.clip(x + offset, 0, threshold) / scale,
    {"threshold": 3.3, "scale": 2.0, "offset": 1.7}, x=WIDE,
)  # fmt: skip
unary("mish", mish, {"threshold": 0.5}, x=N.far(3, 5, kinks=(0.5, -0.5), low=-2, high=2))
unary("soft_relu", soft_relu, {"threshold": 0.7}, x=WIDE)
unary("softshrink", softshrink, {"lambda": 1.0}, x=WIDE)
unary("stanh", lambda x, scale_a=0.67, scale_b=1.7159: scale_b * np.tanh(scale_a * x), {"scale_a": 0.3, "scale_b": 2.0})
unary("swish", lambda x, beta=1.0: x * sigmoid(beta * x), {"beta": 2.3})
unary("thresholded_relu", lambda x, threshold=1.0: x * (x > threshold), {"threshold": 0.25}, x=WIDE)
unary("pow", lambda x, factor=1.0: x**factor, {"factor": 3.0}, {"factor": -0.5}, x=POSITIVE)
unary(
    "scale", scaled, {"scale": -2.3}, {"scale": 2.0, "bias": 0.5},
    {"scale": 2.0, "bias": 0.5, "bias_after_scale": False},
)  # fmt: skip
USES += [
    Use("scale", {"X": N.i(2, 3, high=9)}, {"Out": np.zeros((2, 3), "int64")}, {"scale": 0.0}),
    Use("relu", {"X": f32([-1, 0, 2])}, {"Out": f32([0, 0, 2])}, {"use_cudnn": False, "use_mkldnn": False}),
    Use("pow", {"X": POSITIVE, "FactorTensor": f32([2.0])}, {"Out": POSITIVE**2}, {"factor": 3.0}),
]

# With a form of their own ----------------------------------------------------------------------------------------

x = N.far(4, 5, kinks=(-0.4, 0.6))
USES.append(Use("clip", {"X": x}, {"Out": np.clip(x, -0.4, 0.6)}, {"min": -0.4, "max": 0.6}, "X"))
for max_norm in (0.5, 100.0):
    norm = np.sqrt(np.sum(np.square(x)))
    USES.append(Use("clip_by_norm", {"X": x}, {"Out": x * min(1.0, max_norm / norm)}, {"max_norm": max_norm}))
x = N.f(2, 3, 4)
USES += [
    Use("cumsum", {"X": x}, {"Out": np.cumsum(x, -1)}, {}, "X"),
    Use("cumsum", {"X": x}, {"Out": np.cumsum(x, 0)}, {"axis": 0}, "X"),
    Use("cumsum", {"X": x}, {"Out": np.cumsum(x, 1) - x}, {"axis": 1, "exclusive": True}, "X"),
    Use("cumsum", {"X": x}, {"Out": np.cumsum(x[:, ::-1], 1)[:, ::-1]}, {"axis": 1, "reverse": True}, "X"),
    Use("cumsum", {"X": x}, {"Out": np.cumsum(x[..., ::-1], 2)[..., ::-1] - x}, {"exclusive": True, "reverse": True}),
]
x = N.far(2, 3, 2, 2)
for mode, alpha in (("all", N.f(1)), ("channel", N.f(1, 3, 1, 1)), ("element", N.f(1, 3, 2, 2))):
    USES.append(
        Use("prelu", {"X": x, "Alpha": alpha}, {"Out": np.where(x > 0, x, alpha * x)}, {"mode": mode}, "X Alpha")
    )
x = N.distinct(2, 6, 2, 2)
USES += [
    Use("maxout", {"X": x}, {"Out": x.reshape(2, 3, 2, 2, 2).max(2)}, {"groups": 2}, "X"),
    Use("maxout", {"X": x.transpose(0, 2, 3, 1).copy()}, {"Out": x.reshape(2, 2, 3, 2, 2).max(2).transpose(0, 2, 3, 1)},
        {"groups": 3, "axis": -1}, "X"),
]  # fmt: skip
odd = f32([1, np.inf, 2, 3])
for op, answers in (("isinf", (0, 1, 0)), ("isnan", (0, 0, 1)), ("isfinite", (1, 0, 0))):
    for value, answer in zip((f32([1, 2]), odd, f32([1, np.nan])), answers, strict=True):
        USES.append(Use(op, {"X": value}, {"Out": np.array([bool(answer)])}))

test_output, test_gradient = checks_of(USES)
