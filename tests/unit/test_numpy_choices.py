"""Choices and limits on the host: what NumPy's own give, whatever is broadcast, wherever it is written."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from grouped import grouped

from fluidlite.devices.cpu import NumPyArrays
from fluidlite.render.array_choices import MANY, limit

WHERE: Any = NumPyArrays().extra("where")
DIMS = (48, 64)
DTYPES = ("float32", "float64", "float16", "int64", "uint8", "bool")
CONDITIONS = {"all": DIMS, "rows": (48, 1), "columns": (64,), "one": ()}
SIDES = {"all": DIMS, "row": (1, 64), "column": (48, 1), "number": ()}


def _values(dims: tuple[int, ...], dtype: str, seed: int) -> Any:
    found = np.random.default_rng(seed).integers(-3, 4, dims)
    special = np.array([np.nan, np.inf, -np.inf, -0.0])[found % 4] if dtype.startswith("float") else found
    return np.asarray(np.where(found > 1, special, found)).astype(dtype)


@grouped(
    ("condition", "x", "y", "dtype", "out"),
    itertools.product(CONDITIONS, SIDES, SIDES, DTYPES, ["new", "other", "condition", "x", "y"]),
    by=("condition", "dtype"),
)
def test_the_choice_is_numpy_s_bit_for_bit(condition: str, x: str, y: str, dtype: str, out: str) -> None:
    chosen = np.random.default_rng(0).random(CONDITIONS[condition]) < 0.5
    given = {"condition": np.asarray(chosen), "x": _values(SIDES[x], dtype, 1), "y": _values(SIDES[y], dtype, 2)}
    expected = np.where(*given.values())
    target = np.empty(expected.shape, dtype) if out == "other" else given.get(out)
    if target is not None and (target.shape != expected.shape or target.dtype != expected.dtype):
        target = None
    found = WHERE(*given.values()) if target is None else WHERE(*given.values(), target)
    assert target is None or found is target
    assert found.shape == expected.shape and found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", ["maximum", "minimum"])
@pytest.mark.parametrize("number", [0.0, 0.3, 1e30, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [10, 2 * MANY])
def test_a_limit_is_numpy_s(kind: str, number: float, dtype: str, size: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, size)).astype(dtype)
    x[0, :4] = np.nan, np.inf, -np.inf, 0
    expected = getattr(np, kind)(x, np.asarray(number, dtype))
    for side in (number, np.dtype(dtype).type(number)):
        for out in (None, np.empty_like(x), np.empty((2, 2 * size), dtype)[:, ::2], x.copy()):
            found = limit(np, kind, x, side, out=out)
            assert found.dtype == expected.dtype and (out is None or found is out)
            np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(x, expected) or number in (np.inf, -np.inf)
