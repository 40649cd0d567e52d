"""Operators that make tensors, of given values or random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operators.case import Case, Inputs, Numbers, functional, side, square, torch


def _none(numbers: Numbers, size: int) -> Inputs:
    return {}


def _dims(**more: Any) -> Any:
    return lambda size: {"shape": [side(size), side(size)], **more}


def _like(**more: Any) -> Any:
    return lambda size: {"shape": [-1, side(size)], **more}


def _values(slot: str) -> Any:
    return lambda size: {"shape": [min(size, 1024)], slot: [0.5] * min(size, 1024)}


def _input(numbers: Numbers, size: int) -> Inputs:
    return {"Input": numbers.normal(side(size), side(size))}


def _span(numbers: Numbers, size: int) -> Inputs:
    return {"Start": numbers.one(0), "End": numbers.one(size), "Step": numbers.one(1)}


def _spaced(numbers: Numbers, size: int) -> Inputs:
    return {"Start": numbers.one(0), "Stop": numbers.one(1), "Num": np.asarray([size], np.int32)}


def _probabilities(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.classes(max(size // 256, 16), 64)}


_random = np.random.default_rng(5)

CASES = [
    Case("fill_constant", lambda numbers, size: {}, None, None, _dims(value=2.0)),
    Case("assign_value", _none, None, None, _values("fp32_values")),
    Case("fill", _none, None, None, _values("value")),
    Case("fill_any_like", square("X"), lambda x: np.full_like(x, 2.5), lambda x: torch.full_like(x, 2.5),
         {"value": 2.5}),
    Case("fill_zeros_like", square("X"), lambda x: np.full_like(x, 0), lambda x: torch.zeros_like(x)),
    Case("fill_zeros_like2", square("X"), lambda x: np.full_like(x, 0), lambda x: torch.zeros_like(x)),
    Case("fill_constant_batch_size_like", _input, lambda x: np.full(x.shape, np.float32(2)),
         lambda x: torch.full(x.shape, 2.0), _like(value=2.0)),
    Case("eye", _none, None, None, lambda size: {"num_rows": side(size)}),
    Case("diag", lambda numbers, size: {"Diagonal": numbers.normal(side(size))}, np.diag, lambda x: torch.diag(x)),
    Case("range", _span, lambda a, b, c: np.arange(a[0], b[0], c[0]), lambda a, b, c: torch.arange(a[0], b[0], c[0])),
    Case("linspace", _spaced, lambda a, b, n: np.linspace(a[0], b[0], n[0], dtype=np.float32),
         lambda a, b, n: torch.linspace(a[0], b[0], int(n[0]))),
    Case("uniform_random", _none, None, None, _dims(), check="moments"),
    Case("gaussian_random", _none, None, None, _dims(), check="moments"),
    Case("truncated_gaussian_random", _none, None, None, _dims(), check="moments"),
    Case("randint", _none, None, None, _dims(low=0, high=100), check="moments"),
    Case("randperm", _none, None, None, lambda size: {"n": size}, check="moments", share=0.25),
    Case("uniform_random_batch_size_like", _input, lambda x: _random.uniform(-1, 1, x.shape).astype(np.float32),
         lambda x: torch.empty_like(x).uniform_(-1, 1), _like(), check="moments", tolerance=0.4),
    Case("gaussian_random_batch_size_like", _input, lambda x: _random.standard_normal(x.shape, np.float32),
         lambda x: torch.randn_like(x), _like(), check="moments", tolerance=0.4),
    Case("sampling_id", _probabilities, None, lambda x: torch.multinomial(x, 1), check="dims"),
    Case("dropout", square("X"), lambda x: x * (_random.random(x.shape, np.float32) >= 0.5),
         lambda x: functional.dropout(x, 0.5), {"dropout_implementation": "upscale_in_train"}, ("X",), check="dims"),
]  # fmt: skip
