"""Arguments of primitives, and what they give: independent of the framework, in wider types and in whole numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SPECIAL = (
    0.0, 1.0, 0.5, 1.5, 2.5, 2.0, 3.0, 7.0, 0.1, 1e-3, 2e-4, 5.3, 20.0, 64.0, 88.0, 89.0, 91.0, 104.0, 710.0, 745.0,
    746.0, 1e4, 3.4e15, 2.0**20, 2.0**23, 2.0**24 + 2, 2.0**52, 2.0**53, 1e22, 0.49999997, 0.46875, math.inf, math.nan,
    math.pi / 2, math.pi,
)  # fmt: skip
WORDS = {"float16": "u2", "float32": "u4", "float64": "u8"}
WIDE = {"float16": "f8", "float32": "f8", "float64": "longdouble"}
COUNT = 4096
"""More than any place takes an array namespace for."""
FEW = 10
"""Fewer than any place compiles a kernel for."""


def special(dtype: str) -> Array:
    """Both signs of numbers at which something happens, those at the ends of the type among them."""
    limits = np.finfo(dtype)
    ends = [float(limits.max), float(limits.tiny), float(limits.smallest_subnormal), float(limits.tiny) / 2]
    ends += [float(limits.smallest_subnormal) * 3, float(limits.eps), 1 + float(limits.eps), 1 - float(limits.epsneg)]
    with np.errstate(all="ignore"):
        numbers = np.array([*SPECIAL, *ends]).astype(dtype)
    return np.concatenate([numbers, -numbers])


def unary_arguments(dtype: str, seed: int = 1) -> Array:
    """COUNT numbers: special ones, any bits, and some of usual size."""
    rng, first = np.random.default_rng(seed), special(dtype)
    words = rng.integers(0, 2 ** (8 * int(WORDS[dtype][1])), COUNT // 2, dtype=WORDS[dtype]).view(dtype)
    inside = rng.uniform(-1.1, 1.1, COUNT // 4).astype(dtype)
    usual = rng.uniform(-20, 20, COUNT - COUNT // 2 - COUNT // 4 - first.size).astype(dtype)
    return np.concatenate([first, words, inside, usual])


def binary_arguments(dtype: str, seed: int = 1) -> tuple[Array, Array]:
    """COUNT pairs: of special numbers, of any bits, and of usual size."""
    rng, numbers = np.random.default_rng(seed), special(dtype)
    x, y = (grid.ravel() for grid in np.meshgrid(numbers, numbers[rng.permutation(numbers.size)[:24]], indexing="ij"))
    words = rng.integers(0, 2 ** (8 * int(WORDS[dtype][1])), (2, 1000), dtype=WORDS[dtype]).view(dtype)
    left = COUNT - x.size - 1000
    some = np.exp(rng.uniform(-8, 8, left)).astype(dtype), rng.uniform(-8, 8, left).astype(dtype)
    return np.concatenate([x, words[0], some[0]]), np.concatenate([y, words[1], some[1]])


# sin and cos -------------------------------------------------------------------------------------------------------

BITS = 1400


def _arctan_of_one_over(n: int) -> int:
    total = term = (1 << BITS) // n
    k, sign = 3, -1
    while term:
        term //= n * n
        total += sign * (term // k)
        sign, k = -sign, k + 2
    return total


@functools.cache
def half_pi() -> int:
    """Half of pi times 2 ** BITS, by Machin's formula."""
    return 2 * (4 * _arctan_of_one_over(5) - _arctan_of_one_over(239))


def turns(x: float) -> tuple[int, float, float]:
    """Quarter turns in a finite number, modulo 4, and the rest in two parts: in whole numbers of 1,400 bits."""
    exact = Fraction(x)
    scaled = exact.numerator * (1 << BITS) // exact.denominator
    quarter = half_pi()
    number = (2 * scaled + quarter) // (2 * quarter)
    rest = Fraction(scaled - number * quarter, 1 << BITS)
    high = float(rest)
    return number % 4, high, float(rest - Fraction(high))


def _circular(shift: int) -> Callable[[Array], Array]:
    def compute(x: Array) -> Array:
        result = np.full(x.shape, np.nan, np.longdouble)
        for i in np.flatnonzero(np.isfinite(x)):
            number, high, low = turns(float(x[i]))
            angle = np.longdouble(high) + np.longdouble(low)
            quarter = (number + shift) % 4
            value = np.cos(angle) if quarter % 2 else np.sin(angle)
            result[i] = -value if quarter >= 2 else value
        zero = x == 0
        result[zero] = x[zero] if shift == 0 else 1
        return result

    return compute


# erf ---------------------------------------------------------------------------------------------------------------


def _erfc_above(y: Array) -> Array:
    """The complement of numbers from 2 on: Laplace's continued fraction."""
    fraction = y.copy()
    for k in range(150, 0, -1):
        fraction = y + np.longdouble(k) / 2 / fraction
    square = np.floor(y * 1024) / 1024  # its square is exact
    return np.exp(-square * square) * np.exp(-(y - square) * (y + square)) / (fraction * np.sqrt(np.longdouble(np.pi)))


def _erf_below(x: Array) -> Array:
    """The function of numbers below 2: its series, which has one sign."""
    term, total = x.copy(), x.copy()
    for k in range(1, 80):
        term = term * (2 * x * x) / (2 * k + 1)
        total = total + term
    return 2 * np.exp(-x * x) * total / np.sqrt(np.longdouble(np.pi) + np.longdouble(1.2246467991473532e-16))


def erf(x: Array) -> Array:
    """The error function, as exact as the wider type."""
    with np.errstate(all="ignore"):
        size = np.abs(x).astype(np.longdouble)
        small = np.where(size < 2, size, 1)
        found = np.where(size < 2, _erf_below(small), 1 - _erfc_above(np.where(size < 2, 2, np.minimum(size, 200))))
        return np.where(np.isnan(x), x, np.copysign(found, x))


def normcdf(x: Array) -> Array:
    """The normal distribution function, as exact as the wider type."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        a = np.clip(-wide, 3, 400)
        fraction = a.copy()
        for k in range(150, 0, -1):  # Laplace's continued fraction
            fraction = a + np.longdouble(k) / fraction
        part = np.floor(a * 1024) / 1024  # its square is exact
        size = np.exp(-part * part / 2) * np.exp(-(a - part) * (a + part) / 2)
        pi = np.longdouble(np.pi) + np.longdouble(1.2246467991473532e-16)
        half = (1 + erf(wide * np.sqrt(np.longdouble(0.5)))) / 2
        return np.where(np.isnan(wide), wide, np.where(wide < -3, size / (fraction * np.sqrt(2 * pi)), half))


def normpdf(x: Array) -> Array:
    """The normal density, as exact as the wider type."""
    with np.errstate(all="ignore"):
        a = np.minimum(np.abs(x.astype(np.longdouble)), 400)
        part = np.floor(a * 1024) / 1024  # its square is exact
        pi = np.longdouble(np.pi) + np.longdouble(1.2246467991473532e-16)
        return np.exp(-part * part / 2) * np.exp(-(a - part) * (a + part) / 2) / np.sqrt(2 * pi)


# Others ------------------------------------------------------------------------------------------------------------


def _round(x: Array) -> Array:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole)


def _second_of_equals(choose: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.where(a == b, b, choose(a, b))


REFERENCES: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "neg": np.negative,
    "abs": np.abs, "sign": lambda x: np.sign(x) + 0.0, "maximum": _second_of_equals(np.maximum),
    "minimum": _second_of_equals(np.minimum), "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sin": _circular(0), "cos": _circular(1), "erf": erf, "normcdf": normcdf, "normpdf": normpdf,
    "gelu": lambda x: np.maximum(x, -400) * normcdf(x),
    "round": _round, "mod": np.remainder, "rem": np.remainder,
} | {name: getattr(np, name) for name in (
    "exp", "expm1", "log", "log1p", "sqrt", "tanh", "sinh", "cosh", "floor", "ceil",
)}  # fmt: skip


def expected(name: str, dtype: str, *arguments: Array) -> Array:
    """The results of a primitive in a wider type: exact as far as that is."""
    with np.errstate(all="ignore"):
        if name == "floordiv":  # the floor of the quotient as rounded, in float32 for float16
            compute = "float32" if dtype == "float16" else dtype
            return np.floor(arguments[0].astype(compute) / arguments[1].astype(compute)).astype(WIDE[dtype])
        if name in ("mod", "rem"):  # exact, but for one rounding: a wider one would round elsewhere
            compute = "float32" if dtype == "float16" else dtype
            return np.remainder(arguments[0].astype(compute), arguments[1].astype(compute)).astype(WIDE[dtype])
        return np.asarray(REFERENCES[name](*(argument.astype(WIDE[dtype]) for argument in arguments)))


def off(got: Array, exact: Array, dtype: str, absolute: float = 0.0) -> Array:
    """How far finite results are off beyond ``absolute``, in units in the last place of the exact ones.

    It is 0 where one is not finite.
    """
    limits = np.finfo(dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        size = np.clip(np.abs(rounded), limits.smallest_normal, limits.max)
        unit = np.spacing(size).astype(exact.dtype)
        error = np.maximum(np.abs(got.astype(exact.dtype) - exact) - absolute, 0) / unit
    return np.where(np.isfinite(got) & np.isfinite(rounded), error, 0)
