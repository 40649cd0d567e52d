"""Updates of parameters: they happen in place, in NumPy's and PyTorch's functions too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.operators.case import Array, Case, Inputs, Numbers, side, torch

_f = np.float32
_RATE = 1e-4


def _make(state: str = "", one: Mapping[str, float] | None = None, zero: str = "") -> Callable[[Numbers, int], Inputs]:
    """Parameter, gradient and rate, then positive state, numbers as [1], and state that is 0 at first."""

    def make(numbers: Numbers, size: int) -> Inputs:
        n = side(size)
        found = {"Param": numbers.normal(n, n), "Grad": numbers.normal(n, n), "LearningRate": numbers.one(_RATE)}
        found |= {slot: numbers.positive(n, n) for slot in state.split()}
        found |= {slot: np.zeros((n, n), np.float32) for slot in zero.split()}
        return found | {slot: numbers.one(number) for slot, number in (one or {}).items()}

    return make


def _sgd(p: Any, g: Any, lr: Any) -> Any:
    p -= lr * g
    return p


def _momentum(p: Any, g: Any, lr: Any, v: Any) -> Any:
    v *= 0.9
    v += g
    p -= lr * v
    return p, v


def _sgd_torch(p: Any, g: Any, lr: Any) -> Any:
    return p.add_(g, alpha=-_RATE)


def _momentum_torch(p: Any, g: Any, lr: Any, v: Any) -> Any:
    v.mul_(0.9).add_(g)
    return p.add_(v, alpha=-_RATE), v


def _adam(p: Array, g: Array, lr: Array, m: Array, v: Array, b1: Array, b2: Array) -> Any:
    m *= _f(0.9)
    m += _f(0.1) * g
    v *= _f(0.999)
    v += _f(0.001) * g * g
    p -= lr * np.sqrt(1 - b2) / (1 - b1) * m / (np.sqrt(v) + _f(1e-8))
    return p, m, v


def _adam_torch(p: Any, g: Any, lr: Any, m: Any, v: Any, b1: Any, b2: Any) -> Any:
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    step = _RATE * math.sqrt(1 - 0.999) / (1 - 0.9)
    return p.addcdiv_(m, v.sqrt().add_(1e-8), value=-step), m, v


def _adagrad(p: Any, g: Any, lr: Any, m: Any) -> Any:
    m += g * g
    p -= lr * g / (m**0.5 + 1e-6)
    return p, m


def _adagrad_torch(p: Any, g: Any, lr: Any, m: Any) -> Any:
    m.addcmul_(g, g)
    return p.addcdiv_(g, m.sqrt().add_(1e-6), value=-_RATE), m


def _adamax(p: Array, g: Array, lr: Array, m: Array, n: Array, b1: Array) -> Any:
    m *= _f(0.9)
    m += _f(0.1) * g
    np.maximum(_f(0.999) * n + _f(1e-8), np.abs(g), out=n)
    p -= lr / (1 - b1) * m / n
    return p, m, n


def _adamax_torch(p: Any, g: Any, lr: Any, m: Any, n: Any, b1: Any) -> Any:
    m.lerp_(g, 0.1)
    torch.maximum(n.mul_(0.999).add_(1e-8), g.abs(), out=n)
    return p.addcdiv_(m, n, value=-_RATE / (1 - 0.9)), m, n


def _adadelta(p: Any, g: Any, s: Any, u: Any) -> Any:
    s *= 0.95
    s += (1 - 0.95) * g * g
    step = ((u + 1e-6) / (s + 1e-6)) ** 0.5 * g
    p -= step
    u *= 0.95
    u += (1 - 0.95) * step * step
    return p, s, u


def _decayed(p: Any, g: Any, lr: Any, m: Any) -> Any:
    m *= 0.95
    m += (1 - 0.95) * g * g
    p -= lr * g / (m**0.5 + 1e-6)
    return p, m


def _rmsprop(p: Any, g: Any, lr: Any, s: Any, m: Any) -> Any:
    s *= 0.9
    s += (1 - 0.9) * g * g
    m *= 0.0
    m += lr * g / (s + 1e-10) ** 0.5
    p -= m
    return p, m, s


def _proximal(p: Any, g: Any, lr: Any) -> Any:
    step = p - lr * g
    p[...] = np.sign(step) * np.maximum(np.abs(step) - lr * _f(0.1), 0) / (1 + lr * _f(0.1))
    return p


def _proximal_torch(p: Any, g: Any, lr: Any) -> Any:
    step = p - lr * g
    return p.copy_(torch.sign(step) * torch.clamp(torch.abs(step) - lr * 0.1, min=0) / (1 + lr * 0.1))


def _squares(x: Any) -> Any:
    return (x * x).sum()


def _lars(p: Any, g: Any, lr: Any, v: Any) -> Any:
    a, b = _squares(p) ** 0.5, _squares(g) ** 0.5
    v *= 0.9
    v += lr * 0.001 * a / (b + 0.0005 * a) * (g + 0.0005 * p)
    p -= v
    return p, v


def _numbers_of_windows(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    found: dict[str, Any] = {"param": numbers.normal(n, n)}
    found |= {f"in_sum_{i}": numbers.normal(n, n) for i in (1, 2, 3)}
    return found | {f"in_{name}": np.asarray([5]) for name in ("num_accumulates", "old_num_accumulates", "num_updates")}


def _only(*slots: str) -> Callable[[Numbers, int], Inputs]:
    def make(numbers: Numbers, size: int) -> Inputs:
        n = side(size)
        return {slot: numbers.positive(n, n) for slot in slots}

    return make


def _ahead(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"Fast": numbers.normal(n, n), "Slow": numbers.normal(n, n), "Step": np.asarray([5], np.int32)}


def _mixed(fast: Any, slow: Any, step: Any) -> Any:
    slow += 0.5 * (fast - slow)
    fast[...] = slow
    return fast, slow


_POWERS = {"Beta1Pow": 0.9, "Beta2Pow": 0.999}
_PM = ("ParamOut", "MomentOut")
_MOMENTS = ("ParamOut", "Moment1Out", "Moment2Out")

CASES = [
    Case("sgd", _make(), _sgd, _sgd_torch, outputs=("ParamOut",)),
    Case("momentum", _make(zero="Velocity"), _momentum, _momentum_torch, {"mu": 0.9},
         outputs=("ParamOut", "VelocityOut")),
    Case("momentum", _make(zero="Velocity"), None, None, {"mu": 0.9, "use_nesterov": True}, name="by Nesterov",
         outputs=("ParamOut", "VelocityOut")),
    Case("adam", _make("Moment1 Moment2", _POWERS), _adam, _adam_torch, outputs=_MOMENTS),
    Case("adamax", _make("Moment InfNorm", {"Beta1Pow": 0.9}), _adamax, _adamax_torch, outputs=(*_PM, "InfNormOut")),
    Case("adagrad", _make("Moment"), _adagrad, _adagrad_torch, outputs=_PM),
    Case("decayed_adagrad", _make("Moment"), _decayed, _decayed, outputs=_PM),
    Case("adadelta", _only("Param", "Grad", "AvgSquaredGrad", "AvgSquaredUpdate"), _adadelta, _adadelta,
         outputs=("ParamOut", "AvgSquaredGradOut", "AvgSquaredUpdateOut")),
    Case("rmsprop", _make("MeanSquare Moment"), _rmsprop, _rmsprop, outputs=(*_PM, "MeanSquareOut")),
    Case("ftrl", _make("SquaredAccumulator LinearAccumulator"), None, None, {"l1": 0.1, "l2": 0.1},
         outputs=("ParamOut", "SquaredAccumOut", "LinearAccumOut")),
    Case("proximal_gd", _make(), _proximal, _proximal_torch, {"l1": 0.1, "l2": 0.1}, outputs=("ParamOut",)),
    Case("proximal_adagrad", _make("Moment"), None, None, {"l1": 0.1, "l2": 0.1}, outputs=_PM),
    Case("lars_momentum", _make(zero="Velocity"), _lars, _lars, {"mu": 0.9}, outputs=("ParamOut", "VelocityOut"),
         tolerance=2e-2),
    Case("lamb", _make("Moment1 Moment2", _POWERS), None, None, {"weight_decay": 0.01}, outputs=_MOMENTS,
         tolerance=2e-2),
    Case("dpsgd", _make(), None, None, {"clip": 10.0}, outputs=("ParamOut",), check="moments"),
    Case("dpsgd_step", _make(one={"Noise": 0.5}), None, None, outputs=("ParamOut",)),
    Case("average_accumulates", _numbers_of_windows, None, None, {"max_average_window": 20000},
         outputs=("out_sum_1", "out_sum_2", "out_sum_3")),
    Case("lookahead_update", _ahead, _mixed, lambda fast, slow, step: (fast.copy_(slow.lerp_(fast, 0.5)), slow),
         outputs=("FastOut", "SlowOut")),
]  # fmt: skip
