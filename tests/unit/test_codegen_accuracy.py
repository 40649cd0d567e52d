"""The framework's own mathematical functions, over all float32 numbers by a stride, and float64 by samples."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codegen_harness import execute
from test_codegen_primitives import context_of, marked, operator

from fluidlite.codegen import expr

STRIDE = 4099
"""A prime: a million of all float32 numbers, with every exponent and mantissas of all kinds."""
BOUNDS = {
    "exp": 1.0, "expm1": 1.5, "log": 1.0, "log1p": 1.5, "tanh": 2.5, "sin": 3.0, "cos": 3.0, "asin": 2.5, "acos": 1.5,
    "atan": 2.5, "sinh": 4.0, "cosh": 3.0, "erf": 5.0,
}  # fmt: skip
"""Units in the last place, of float32; docs/kernels.md states them."""
WIDE_BOUNDS = {**BOUNDS, "exp": 1.5, "expm1": 2.5, "cosh": 3.5}
"""Of float64; without sin and cos, which are right to a unit of 1 for arguments below 1e6."""
REFERENCES: dict[str, Callable[[Any], Any]] = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "erf": np.vectorize(math.erf, otypes=["f8"]),
} | {name: getattr(np, name) for name in BOUNDS if hasattr(np, name)}  # fmt: skip
CONTEXTS = [marked(name, id=name) for name in ("c-own", "llvm", "opencl")]


def compute(context: str, name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A function of the framework's, whether or not the place has a faster one."""
    found: np.ndarray[Any, Any] = execute(
        context_of(context), operator(lambda x: expr._node(name, x), ("X",), x.dtype.name), {"X": x}
    )["Out"]
    return found


def worst(got: Any, exact: Any, dtype: str) -> tuple[float, int]:
    """The largest error in units of the last place, and where it is; what is not finite, and signs, must agree."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        np.testing.assert_array_equal(got[~np.isfinite(rounded)], rounded[~np.isfinite(rounded)])
        known = ~np.isnan(rounded)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(rounded[known]))
        unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(dtype).smallest_normal))
        error = np.abs(got - exact) / unit
    error[~np.isfinite(rounded)] = 0
    at = int(np.argmax(error))
    return float(error[at]), at


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", list(BOUNDS))
def test_error_of_float32(context: str, name: str) -> None:
    x = np.arange(0, 2**32, STRIDE, dtype=np.uint64).astype("u4").view("f4")
    x = np.concatenate([x, np.float32([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan])])
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype("f8"))
    error, at = worst(compute(context, name, x), exact, "float32")
    assert error <= BOUNDS[name], (name, x[at])


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="NumPy has no wider type to compare with")
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", [name for name in WIDE_BOUNDS if name not in ("sin", "cos")])
def test_error_of_float64(context: str, name: str) -> None:
    rng = np.random.default_rng(8)
    words = rng.integers(0, 2**64, 100000, dtype=np.uint64).view("f8")
    powers = 10.0 ** rng.uniform(-20, 3, 50000)
    x = np.concatenate(
        [words, rng.uniform(-1.2, 1.2, 50000), powers, -powers, rng.uniform(-760, 760, 50000),
         [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan]]
    )  # fmt: skip
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(np.longdouble))
    error, at = worst(compute(context, name, x), exact, "float64")
    assert error <= WIDE_BOUNDS[name], (name, x[at])


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_turns_of_float64(context: str, name: str) -> None:
    x = np.concatenate([np.random.default_rng(9).uniform(-1e6, 1e6, 100000), np.arange(-50, 50) * (np.pi / 2), [-0.0]])
    exact = REFERENCES[name](x.astype(np.longdouble))
    got = compute(context, name, x)
    assert np.abs(got - exact).max() <= np.finfo("f8").eps
    assert name == "cos" or np.signbit(got[-1])


def test_coefficients_are_what_the_tool_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    minimax = import_module("minimax")
    polynomials = import_module("fluidlite.codegen.polynomials")
    for name, what in minimax.FITS.items():
        numbers, error = minimax.fit(what, single=True)
        kept = getattr(polynomials, name)["float32"]
        np.testing.assert_array_equal(np.float32(numbers), np.float32(kept))
        assert error < 2.0**-26
    sys.modules.pop("minimax")
