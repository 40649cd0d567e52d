"""Normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operators.case import Array, Case, Inputs, Numbers, functional, image, side


def _images(*slots: str) -> Callable[[Numbers, int], Inputs]:
    def make(numbers: Numbers, size: int) -> Inputs:
        dims = image(size)
        return {"X": numbers.normal(*dims), **{slot: numbers.positive(dims[1]) for slot in slots}}

    return make


def _rows(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "Scale": numbers.positive(n), "Bias": numbers.normal(n)}


def _normal(x: Array, *axes: int) -> Any:
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + np.float32(1e-5))


def _of(values: Array) -> Any:
    return values[:, None, None]


def _groups(x: Array, scale: Array, bias: Array) -> Any:
    return _normal(x.reshape(len(x), 2, -1), 2).reshape(x.shape) * _of(scale) + _of(bias)


def _kept(*slots: str) -> Callable[[Numbers, int], Inputs]:
    """Rows, and vectors with a number for each of their columns."""

    def make(numbers: Numbers, size: int) -> Inputs:
        n = side(size)
        return {"X": numbers.normal(n, n), **{slot: numbers.positive(n) for slot in slots}}

    return make


def _weight(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"Weight": numbers.positive(n, n), "U": numbers.positive(n), "V": numbers.positive(n)}


def _spectral(w: Any, u: Any, v: Any) -> Any:
    v = w.T @ u
    v = v / (v @ v) ** 0.5
    u = w @ v
    u = u / (u @ u) ** 0.5
    return w / (u @ (w @ v))


_PARAMETERS = ("X", "Scale", "Bias")
_Y: dict[str, Any] = {"outputs": ("Y",), "grads": _PARAMETERS, "tolerance": 2e-2}

CASES = [
    Case("batch_norm", _images("Scale", "Bias", "Mean", "Variance"),
         lambda x, s, b, m, v: _normal(x, 0, 2, 3) * _of(s) + _of(b),
         lambda x, s, b, m, v: functional.batch_norm(x, m.clone(), v.clone(), s, b, True), **_Y),
    Case("batch_norm", _images("Scale", "Bias", "Mean", "Variance"),
         lambda x, s, b, m, v: (x - _of(m)) * _of(s / np.sqrt(v + np.float32(1e-5))) + _of(b),
         lambda x, s, b, m, v: functional.batch_norm(x, m, v, s, b, False), {"is_test": True}, outputs=("Y",),
         name="at test"),
    Case("layer_norm", _rows, lambda x, s, b: _normal(x, 1) * s + b,
         lambda x, s, b: functional.layer_norm(x, (len(s),), s, b), **_Y),
    Case("group_norm", _images("Scale", "Bias"), _groups, lambda x, s, b: functional.group_norm(x, 2, s, b),
         {"groups": 2},
         **_Y),
    Case("instance_norm", _images("Scale", "Bias"), lambda x, s, b: _normal(x, 2, 3) * _of(s) + _of(b),
         lambda x, s, b: functional.instance_norm(x, weight=s, bias=b), **_Y),
    Case("lrn", _images(), None, lambda x: functional.local_response_norm(x, 5, 5e-4, 0.75, 2.0), {}, ("X",)),
    Case("affine_channel", _images("Scale", "Bias"), lambda x, s, b: x * _of(s) + _of(b),
         lambda x, s, b: x * s[:, None, None] + b[:, None, None], {"data_layout": "NCHW"}, _PARAMETERS,
         tolerance=2e-2),
    Case("data_norm", _kept("BatchSize", "BatchSum", "BatchSquareSum"), lambda x, n, s, q: (x - s / n) * np.sqrt(n / q),
         lambda x, n, s, q: (x - s / n) * (n / q).sqrt(), {}, ("X",), ("Y",), tolerance=1e-3),
    Case("spectral_norm", _weight, _spectral, _spectral, tolerance=1e-3),
    Case("spectral_norm", _weight, lambda w, u, v: w / (u @ (w @ v)), lambda w, u, v: w / (u @ (w @ v)),
         {"power_iters": 0}, ("Weight",), name="of vectors as given", tolerance=1e-3),
]  # fmt: skip
