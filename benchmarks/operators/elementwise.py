"""Elementwise operators on two tensors, comparisons, logic, and arithmetic on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operators.case import Array, Case, Inputs, Numbers, side, square, torch, unary


def _pair(low: float = -2, high: float = 2, row: bool = False) -> Callable[[Numbers, int], Inputs]:
    def make(numbers: Numbers, size: int) -> Inputs:
        n = side(size)
        y = numbers.uniform(low, high, n) if row else numbers.uniform(low, high, n, n)
        return {"X": numbers.uniform(low, high, n, n), "Y": y}

    return make


def _integers(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.ints(1000, n, n), "Y": numbers.ints(50, n, n) + 1}


def _truths(*slots: str) -> Callable[[Numbers, int], Inputs]:
    return lambda numbers, size: {slot: numbers.bools(side(size), side(size)) for slot in slots}


def _both(type: str, numpy: Any, torch: Any, low: float = -2, high: float = 2) -> list[Case]:
    grads = ("X", "Y")
    return [
        Case(type, _pair(low, high), numpy, torch, grads=grads),
        Case(type, _pair(low, high, row=True), numpy, torch, grads=grads, name="of a row"),
    ]


def _add_n(*parts: Array) -> Any:
    return parts[0] + parts[1] + parts[2]


def _three(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": [numbers.normal(n, n) for _ in range(3)]}


def _chosen(numbers: Numbers, size: int) -> Inputs:
    return {**_truths("Condition")(numbers, size), **square("X", "Y")(numbers, size)}


def _one(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.one(3)}


def _steps(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "Alpha": numbers.positive(n)}


CASES = [
    *_both("elementwise_add", lambda x, y: x + y, lambda x, y: x + y),
    *_both("elementwise_sub", lambda x, y: x - y, lambda x, y: x - y),
    *_both("elementwise_mul", lambda x, y: x * y, lambda x, y: x * y),
    *_both("elementwise_div", lambda x, y: x / y, lambda x, y: x / y, 0.5, 2),
    *_both("elementwise_max", np.maximum, lambda x, y: torch.maximum(x, y)),
    *_both("elementwise_min", np.minimum, lambda x, y: torch.minimum(x, y)),
    *_both("elementwise_pow", lambda x, y: x**y, lambda x, y: x**y, 0.5, 2),
    Case("elementwise_mod", _integers, lambda x, y: x % y, lambda x, y: x % y, name="of int64"),
    Case("elementwise_mod", _pair(0.5, 9), lambda x, y: x % y, lambda x, y: x % y, grads=("X", "Y"), tolerance=1e9),
    Case("elementwise_floordiv", _integers, lambda x, y: x // y, lambda x, y: x // y, name="of int64"),
    Case("minus", _pair(), lambda x, y: x - y, lambda x, y: x - y, grads=("X", "Y")),
    Case("sum", _three, _add_n, _add_n, grads=("X",)),
    *(
        Case(type, _pair(), getattr(np, name), lambda x, y, name=short: getattr(torch, name)(x, y))
        for type, name, short in (
            ("equal", "equal", "eq"), ("not_equal", "not_equal", "ne"), ("less_than", "less", "lt"),
            ("less_equal", "less_equal", "le"), ("greater_than", "greater", "gt"),
            ("greater_equal", "greater_equal", "ge"),
        )
    ),
    *(
        Case(type, _truths("X", "Y"), getattr(np, type), lambda x, y, name=type: getattr(torch, name)(x, y))
        for type in ("logical_and", "logical_or", "logical_xor")
    ),
    Case("logical_not", _truths("X"), np.logical_not, lambda x: torch.logical_not(x)),
    Case("where", _chosen, np.where, lambda c, x, y: torch.where(c, x, y), grads=("X", "Y")),
    unary("scale", lambda x: x * np.float32(2) + np.float32(1), lambda x: x * 2 + 1,
          attrs={"scale": 2.0, "bias": 1.0}),
    unary("clip", lambda x: np.clip(x, -1, 1), lambda x: torch.clamp(x, -1, 1), attrs={"min": -1.0, "max": 1.0}),
    unary("cast", lambda x: x.astype(np.int32), lambda x: x.int(), attrs={"in_dtype": "float32", "out_dtype": "int32"},
          name="to int32", grad=False),
    unary("cast", lambda x: x.astype(np.float64), lambda x: x.double(), name="to float64",
          attrs={"in_dtype": "float32", "out_dtype": "float64"}),
    Case("cast", lambda numbers, size: {"X": numbers.ints(99, side(size), side(size))},
         lambda x: x.astype(np.float32), lambda x: x.float(), {"in_dtype": "int64", "out_dtype": "float32"},
         name="from int64"),
    unary("cast", lambda x: x.astype(np.float16), lambda x: x.half(), name="to float16", grad=False,
          attrs={"in_dtype": "float32", "out_dtype": "float16"}),
    unary("assign", np.copy, lambda x: x.clone()),
    unary("device_transfer", np.copy, lambda x: x.clone()),
    unary("device_view", np.copy, lambda x: x.clone()),
    Case("assign_like", lambda numbers, size: {"X": (x := numbers.normal(side(size), side(size))), "Like": x},
         lambda x, y: np.copy(x), lambda x, y: x.clone()),
    Case("increment", _one, lambda x: x + 1, lambda x: x + 1),
    Case("prelu", lambda numbers, size: {**square("X")(numbers, size), "Alpha": numbers.one(0.25)},
         lambda x, a: np.where(x > 0, x, a * x), lambda x, a: torch.prelu(x, a), grads=("X", "Alpha")),
    Case("prelu", _steps, lambda x, a: np.where(x > 0, x, a * x), lambda x, a: torch.prelu(x, a),
         {"mode": "channel"}, ("X", "Alpha"), name="of channels"),
]  # fmt: skip
