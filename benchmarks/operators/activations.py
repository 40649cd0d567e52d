"""Functions of one number: each line a type, what one writes with NumPy, and with PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.operators.case import Array, functional, torch, unary

_ONE, _HALF = np.float32(1), np.float32(0.5)
_SCALE, _ALPHA = np.float32(1.0507009873554805), np.float32(1.6732632423543772)


def _sigmoid(x: Array) -> Any:
    return _ONE / (_ONE + np.exp(-x))


def _erf(x: Array) -> Any:
    """Abramowitz and Stegun's formula 7.1.26: NumPy has no erf."""
    t = _ONE / (_ONE + np.float32(0.3275911) * np.abs(x))
    factors = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    sum: Any = np.float32(factors[0])
    for factor in factors[1:]:
        sum = sum * t + np.float32(factor)
    return np.sign(x) * (_ONE - sum * t * np.exp(-x * x))


def _softplus(x: Array) -> Any:
    return np.log1p(np.exp(x))


CASES = [
    unary("relu", lambda x: np.maximum(x, 0), lambda x: torch.relu(x)),
    unary("relu6", lambda x: np.clip(x, 0, 6), lambda x: functional.relu6(x)),
    unary("brelu", lambda x: np.clip(x, 0, 24), lambda x: functional.hardtanh(x, 0.0, 24.0)),
    unary("leaky_relu", lambda x: np.maximum(x, np.float32(0.02) * x), lambda x: functional.leaky_relu(x, 0.02)),
    unary("thresholded_relu", lambda x: np.where(x > 1, x, np.float32(0)), lambda x: functional.threshold(x, 1.0, 0.0)),
    unary("straight_through_max", lambda x: np.maximum(x, np.float32(-9)),
          lambda x: x + (torch.clamp(x, min=-9) - x).detach(), attrs={"value": -9.0}),
    unary("elu", lambda x: np.where(x > 0, x, np.expm1(x)), lambda x: functional.elu(x)),
    unary("selu", lambda x: _SCALE * np.where(x > 0, x, _ALPHA * np.expm1(x)), lambda x: functional.selu(x)),
    unary("gelu", lambda x: _HALF * x * (_ONE + _erf(x * np.float32(math.sqrt(0.5)))), lambda x: functional.gelu(x)),
    unary("sigmoid", _sigmoid, lambda x: torch.sigmoid(x)),
    unary("logsigmoid", lambda x: -_softplus(-x), lambda x: functional.logsigmoid(x)),
    unary("hard_sigmoid", lambda x: np.clip(np.float32(0.2) * x + _HALF, 0, 1),
          lambda x: torch.clamp(0.2 * x + 0.5, 0, 1)),
    unary("swish", lambda x: x * _sigmoid(x), lambda x: functional.silu(x)),
    unary("hard_swish", lambda x: x * np.clip(x + 3, 0, 6) / 6, lambda x: functional.hardswish(x)),
    unary("mish", lambda x: x * np.tanh(_softplus(x)), lambda x: functional.mish(x)),
    unary("tanh", np.tanh, lambda x: torch.tanh(x)),
    unary("tanh_shrink", lambda x: x - np.tanh(x), lambda x: functional.tanhshrink(x)),
    unary("stanh", lambda x: np.float32(1.7159) * np.tanh(x * np.float32(2 / 3)),
          lambda x: 1.7159 * torch.tanh(x * (2 / 3))),
    unary("softplus", _softplus, lambda x: functional.softplus(x)),
    unary("soft_relu", lambda x: _softplus(np.clip(x, -40, 40)),
          lambda x: functional.softplus(torch.clamp(x, -40, 40))),
    unary("softsign", lambda x: x / (_ONE + np.abs(x)), lambda x: functional.softsign(x)),
    unary("softshrink", lambda x: np.where(x > _HALF, x - _HALF, np.where(x < -_HALF, x + _HALF, np.float32(0))),
          lambda x: functional.softshrink(x)),
    unary("hard_shrink", lambda x: np.where(np.abs(x) > _HALF, x, np.float32(0)), lambda x: functional.hardshrink(x)),
    unary("abs", np.abs, lambda x: torch.abs(x)),
    unary("sign", np.sign, lambda x: torch.sign(x)),
    unary("ceil", np.ceil, lambda x: torch.ceil(x)),
    unary("floor", np.floor, lambda x: torch.floor(x)),
    unary("round", lambda x: np.trunc(x + np.copysign(_HALF, x)),
          lambda x: torch.trunc(x + torch.copysign(x * 0 + 0.5, x))),
    unary("square", np.square, lambda x: torch.square(x)),
    unary("sqrt", np.sqrt, lambda x: torch.sqrt(x), 0.1, 4),
    unary("rsqrt", lambda x: _ONE / np.sqrt(x), lambda x: torch.rsqrt(x), 0.1, 4),
    unary("reciprocal", lambda x: _ONE / x, lambda x: torch.reciprocal(x), 0.1, 4),
    unary("pow", lambda x: x ** np.float32(1.7), lambda x: x**1.7, 0.1, 4, attrs={"factor": 1.7}),
    unary("exp", np.exp, lambda x: torch.exp(x)),
    unary("log", np.log, lambda x: torch.log(x), 0.1, 4),
    unary("log1p", np.log1p, lambda x: torch.log1p(x), -0.5, 4),
    unary("sin", np.sin, lambda x: torch.sin(x)),
    unary("cos", np.cos, lambda x: torch.cos(x)),
    unary("sinh", np.sinh, lambda x: torch.sinh(x)),
    unary("cosh", np.cosh, lambda x: torch.cosh(x)),
    unary("asin", np.arcsin, lambda x: torch.asin(x), -0.9, 0.9),
    unary("acos", np.arccos, lambda x: torch.acos(x), -0.9, 0.9),
    unary("atan", np.arctan, lambda x: torch.atan(x)),
    unary("erf", _erf, lambda x: torch.erf(x)),
]  # fmt: skip
