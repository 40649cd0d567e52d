"""Choices on the host: what NumPy's own give, whatever is broadcast, wherever it is written."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from grouped import grouped

from fluidlite.devices.cpu import NumPyArrays

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
