"""The framework's own mathematical functions, over all float32 numbers by a stride, and float64 by samples."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codegen_harness import execute
from primitive_cases import erf, normcdf, normpdf
from test_codegen_primitives import context_of, marked, operator

from fluidlite.codegen.expr import node

STRIDE = 8209
"""A prime: half a million of all float32 numbers, with every exponent and mantissas of all kinds."""
BOUNDS = {
    "exp": 1.0, "expm1": 1.5, "log": 1.0, "log1p": 1.5, "tanh": 2.5, "sin": 3.0, "cos": 3.0, "asin": 2.5, "acos": 1.5,
    "atan": 2.5, "sinh": 4.0, "cosh": 3.0, "erf": 5.0, "normcdf": 6.0, "normpdf": 2.5,
}  # fmt: skip
"""Units in the last place, of float32; docs/kernels.md states them."""
WIDE_BOUNDS = {**BOUNDS, "exp": 1.5, "expm1": 2.5, "cosh": 3.5, "normcdf": 10.0}
"""Of float64."""
REFERENCES: dict[str, Callable[[Any], Any]] = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "erf": erf, "normcdf": normcdf, "normpdf": normpdf,
} | {name: getattr(np, name) for name in BOUNDS if hasattr(np, name)}  # fmt: skip
CONTEXTS = [marked(name, id=name) for name in ("c-own", "llvm", "opencl")]


def compute(context: str, name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A function of the framework's, whether or not the place has a faster one."""
    found: np.ndarray[Any, Any] = execute(
        context_of(context), operator(lambda x: node(name, x), ("X",), x.dtype.name), {"X": x}
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


@functools.lru_cache(1)
def exact_float32(name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Arguments, and what a function is of them: some take seconds, and all contexts are held against the same."""
    x = np.arange(0, 2**32, STRIDE, dtype=np.uint64).astype("u4").view("f4")
    x = np.concatenate([x, np.float32([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan])])
    with np.errstate(all="ignore"):
        return x, REFERENCES[name](x.astype("f8"))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", list(BOUNDS))
def test_error_of_float32(context: str, name: str) -> None:
    x, exact = exact_float32(name)
    error, at = worst(compute(context, name, x), exact, "float32")
    assert error <= BOUNDS[name], (name, x[at])


@functools.lru_cache(1)
def exact_float64(name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """As :func:`exact_float32`, in the wider type."""
    rng = np.random.default_rng(8)
    words = rng.integers(0, 2**64, 100000, dtype=np.uint64).view("f8")
    powers = 10.0 ** rng.uniform(-20, 3, 50000)
    x = np.concatenate(
        [words, rng.uniform(-1.2, 1.2, 50000), powers, -powers, rng.uniform(-760, 760, 50000),
         [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan]]
    )  # fmt: skip
    with np.errstate(all="ignore"):
        return x, REFERENCES[name](x.astype(np.longdouble))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="NumPy has no wider type to compare with")
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", list(WIDE_BOUNDS))
def test_error_of_float64(context: str, name: str) -> None:
    x, exact = exact_float64(name)
    error, at = worst(compute(context, name, x), exact, "float64")
    assert error <= WIDE_BOUNDS[name], (name, x[at])


def test_coefficients_are_what_the_tool_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    minimax = import_module("minimax")
    polynomials = import_module("fluidlite.codegen.polynomials")
    for name, what in minimax.FITS.items():
        numbers, error = minimax.fit(what, single=True)
        kept = getattr(polynomials, name)["float32"]
        np.testing.assert_array_equal(np.float32(numbers), np.float32(kept))
        assert error < (2.0**-26 if what.anew else 2.0**-25)
    for name, what in minimax.SINGLES.items():
        numbers, error = minimax.fit(what, single=True)
        np.testing.assert_array_equal(np.float32(numbers), np.float32(getattr(polynomials, name)))
        assert error < 2
    for name, fraction in minimax.FRACTIONS.items():
        above, below, error = minimax.fit_fraction(fraction, single=True)
        kept = getattr(polynomials, name)["float32"]
        np.testing.assert_array_equal(np.float32(above), np.float32(kept[0]))
        np.testing.assert_array_equal(np.float32(below), np.float32(kept[1]))
        assert error < 2.0**-24
    sys.modules.pop("minimax")
