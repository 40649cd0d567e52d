"""What array namespaces lack, in Array-API functions: the helpers that generated array code calls as ``H.name``.

Each takes the namespace first and returns new arrays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.codegen.philox import gaussian, uniform
from fluidlite.codegen.polynomials import (
    ERF_FAR,
    ERF_NEAR,
    ERF_NEAR_BELOW,
    ERF_OVER,
    ERF_P,
    ERF_Q,
    GELU_END,
    NORMAL_END,
    NORMAL_POWER,
    NORMAL_TAIL,
    horner,
)
from fluidlite.codegen.sums import pairwise_sum

__all__ = [
    "as_number",
    "cast",
    "dtype_object",
    "erf",
    "floor_div",
    "gaussian",
    "gelu",
    "int_div",
    "int_floor_div",
    "int_mod",
    "int_pow",
    "int_rem",
    "normcdf",
    "normpdf",
    "pairwise_sum",
    "pow",
    "round",
    "uniform",
]

BLOCK = 1 << 16
"""Elements of an array that stay in cache while one function after the other is applied to them."""

INV_SQRT_2PI = 0.39894228040143267794
_LEAST = 2.0**-149
"""The smallest number above 0 in float32."""
_GELU_POWER = tuple(math.log(2) * coefficient for coefficient in NORMAL_POWER)


def dtype_object(xp: Any, dtype: str) -> Any:
    """The namespace's dtype of that name; bfloat16 of ml_dtypes where it has none."""
    found = getattr(xp, dtype, None)
    return NUMPY[dtype] if found is None else found


def as_number(xp: Any, value: Any, like: Any, dtype: str) -> Any:
    """A number as an array without dims, or a tuple of them as one of one dim, where ``like`` lives."""
    kind = dtype_object(xp, dtype)
    try:
        return xp.asarray(value, dtype=kind, device=like.device)
    except TypeError:  # a namespace of one device does not take the argument
        return xp.asarray(value, dtype=kind)


def _full(xp: Any, like: Any, value: Any) -> Any:
    """A number beside an array, in its dtype: namespaces compare arrays with arrays alone."""
    return like.dtype.type(value) if type(like) is np.ndarray else xp.full_like(like, value)


def cast(xp: Any, x: Any, dtype: str) -> Any:
    """Convert by the table's rule: float to integer truncates, saturates, and makes 0 of NaN."""
    target = dtype_object(xp, dtype)
    if dtype == "bool":
        return x != 0
    if not dtype.startswith(("int", "uint")) or not xp.isdtype(x.dtype, "real floating"):
        return xp.astype(x, target)
    limits = xp.iinfo(target)
    low, high = int(limits.min), int(limits.max)
    if x.size and hasattr(x, "__array_interface__") and x.min() >= low and x.max() < float(high + 1):
        return xp.astype(x, target)  # host memory, and nothing to saturate (NaN fails the test): 20 times faster
    over = x >= float(high + 1)
    under = x < float(low)
    safe = xp.where(over | under | (x != x), _full(xp, x, 0.0), x)
    result = xp.astype(safe, target)
    return xp.where(over, _full(xp, result, high), xp.where(under, _full(xp, result, low), result))


def round(xp: Any, x: Any) -> Any:
    """Nearest whole number, halves away from zero; exact, unlike ``floor(x + 0.5)``."""
    whole = xp.trunc(x)
    return xp.where(xp.abs(x - whole) >= 0.5, whole + xp.sign(x), whole)


def floor_div(xp: Any, a: Any, b: Any) -> Any:
    """``floor(a / b)`` of floats."""
    return xp.floor(a / b)


def _broadcast(xp: Any, a: Any, b: Any) -> tuple[Any, Any]:
    both: list[Any] = list(xp.broadcast_arrays(xp.asarray(a), xp.asarray(b)))
    return both[0], both[1]


def int_div(xp: Any, a: Any, b: Any) -> Any:
    """Quotient truncated toward zero, 0 of a division by zero, wrapped for the lowest by -1."""
    a, b = _broadcast(xp, a, b)
    one, zero = _full(xp, b, 1), _full(xp, b, 0)
    if not xp.isdtype(b.dtype, "signed integer"):
        return xp.where(b == 0, zero, a // xp.where(b == 0, one, b))
    safe = xp.where((b == 0) | (b == -1), one, b)
    quotient = a // safe
    quotient = xp.where((quotient * safe != a) & ((a < 0) != (safe < 0)), quotient + one, quotient)
    return xp.where(b == 0, zero, xp.where(b == -1, zero - a, quotient))


def _on_host(xp: Any, name: str, a: Any, b: Any) -> Any:
    """NumPy's own function for integers on the host, which guards against 0 and -1 as we do; else None."""
    if not (hasattr(a, "__array_interface__") and hasattr(xp, "errstate")):
        return None
    with xp.errstate(all="ignore"):
        return getattr(xp, name)(a, b)


def int_floor_div(xp: Any, a: Any, b: Any) -> Any:
    """Quotient rounded down, 0 of a division by zero."""
    quick = _on_host(xp, "floor_divide", a, b)
    if quick is not None:
        return quick
    a, b = _broadcast(xp, a, b)
    one, zero = _full(xp, b, 1), _full(xp, b, 0)
    if not xp.isdtype(b.dtype, "signed integer"):
        return int_div(xp, a, b)
    safe = xp.where((b == 0) | (b == -1), one, b)
    return xp.where(b == 0, zero, xp.where(b == -1, zero - a, a // safe))


def int_mod(xp: Any, a: Any, b: Any) -> Any:
    """Remainder with the divisor's sign, 0 of a division by zero."""
    quick = _on_host(xp, "remainder", a, b)
    if quick is not None:
        return quick
    a, b = _broadcast(xp, a, b)
    one, zero = _full(xp, b, 1), _full(xp, b, 0)
    if xp.isdtype(b.dtype, "signed integer"):
        safe = xp.where((b == 0) | (b == -1), one, b)
        return xp.where((b == 0) | (b == -1), zero, a % safe)
    return xp.where(b == 0, zero, a % xp.where(b == 0, one, b))


def int_rem(xp: Any, a: Any, b: Any) -> Any:
    """Remainder with the dividend's sign, 0 of a division by zero."""
    quick = _on_host(xp, "fmod", a, b)
    if quick is not None:
        return quick
    a, b = _broadcast(xp, a, b)
    return xp.where(b == 0, _full(xp, b, 0), a - b * int_div(xp, a, b))


def int_pow(xp: Any, a: Any, b: Any) -> Any:
    """Power by squaring, wrapping; a negative exponent gives 0, except of 1 and -1."""
    a, b = _broadcast(xp, a, b)
    one, zero = _full(xp, a, 1), _full(xp, a, 0)
    result, square = one, a
    left = xp.where(b < 0, b & 1, b)  # 1 and -1 to a negative power: only whether it is odd counts
    for _ in range(8 * xp.iinfo(b.dtype).bits // 8):
        result = xp.where((left & 1) != 0, result * square, result)
        square = square * square
        left = left >> 1
    if not xp.isdtype(b.dtype, "signed integer"):
        return result
    return xp.where((b < 0) & (a != one) & (a != zero - one), zero, result)


def _in_blocks(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An elementwise function; of large NumPy arrays block by block."""

    @functools.wraps(function)
    def blocked(xp: Any, x: Any) -> Any:
        if not hasattr(x, "__array_interface__") or x.size <= BLOCK:
            return function(xp, x)
        flat = xp.reshape(x, (-1,))
        result = xp.empty_like(flat)
        for start in range(0, flat.size, BLOCK):
            result[start : start + BLOCK] = function(xp, flat[start : start + BLOCK])
        return xp.reshape(result, x.shape)

    return blocked


@_in_blocks
def erf(xp: Any, x: Any) -> Any:
    """The error function, for namespaces that have none."""
    if _name(xp, x) == "float64":
        return _erf64(xp, x)
    inside = xp.clip(x, -ERF_OVER, ERF_OVER)
    square = inside * inside
    value = horner(ERF_P, square)
    value /= horner(ERF_Q, square)
    value *= inside
    return xp.clip(value, -1.0, 1.0)


def _erf64(xp: Any, x: Any) -> Any:
    """A fraction of a small argument; of others, what the normal distribution leaves beyond them."""
    size = xp.abs(x)
    z = size * size
    near = x * (horner(ERF_NEAR, z) / horner(ERF_NEAR_BELOW, z))
    far = 1.0 - 2.0 * normcdf(xp, size * -math.sqrt(2))
    return xp.where(size < ERF_FAR, near, far * xp.sign(x))


@_in_blocks
def normcdf(xp: Any, x: Any) -> Any:
    """The normal distribution function, as exact where it is small: namespaces have none.

    Of -|x| a fraction times exp(-x * x / 2); above 0, that is taken from 1.
    """
    y, density, low = _normal(xp, x)
    above, below = NORMAL_TAIL[_name(xp, x)]
    factor = horner(above, y) / horner(below, y)
    tail = density * (factor - factor * low)
    return xp.abs(xp.astype(x > 0, tail.dtype) - tail)  # 1 - tail above 0: NumPy's where takes ten times as long


@_in_blocks
def gelu(xp: Any, x: Any) -> Any:
    """``x`` times the normal distribution function; beyond the end, where that is 0, the number does not count.

    In float32 the function of -|x| is a power, and |x| times it is taken from x where that is positive, else from 0.
    """
    if _name(xp, x) == "float64":
        return xp.maximum(x, _full(xp, x, -NORMAL_END["float64"])) * normcdf(xp, x)
    y = xp.abs(xp.clip(x, -GELU_END, GELU_END))
    power = horner(_GELU_POWER, y)
    power *= y
    y *= 0.5
    y *= xp.exp(power)
    return xp.maximum(x, _full(xp, x, -_LEAST)) - y  # not of 0: which of two zeros is the maximum is not said


@_in_blocks
def normpdf(xp: Any, x: Any) -> Any:
    """The normal density."""
    _, density, low = _normal(xp, x)
    return density * (INV_SQRT_2PI - INV_SQRT_2PI * low)


def _name(xp: Any, x: Any) -> str:
    return "float64" if x.dtype == getattr(xp, "float64", None) else "float32"


def _normal(xp: Any, x: Any) -> tuple[Any, Any, Any]:
    """|x| up to an end as y, exp(-y * y / 2), and how much of it is too much: the square's rounding error.

    That is found by halves of the factors (Dekker, 1971).
    """
    dtype = _name(xp, x)
    y = xp.abs(xp.clip(x, -NORMAL_END[dtype], NORMAL_END[dtype]))
    z = y * y
    half = y * (2.0**27 + 1 if dtype == "float64" else 2.0**12 + 1)
    half = half - (half - y)
    rest = y - half
    low = ((half * half - z) + 2 * half * rest) + rest * rest
    return y, xp.exp(-0.5 * z), 0.5 * low


def pow(xp: Any, a: Any, b: Any) -> Any:
    """C's power: namespaces take the root where every exponent is 1/2, and that of -infinity or -0 differs."""
    result = xp.pow(a, b)
    half = b == 0.5
    if not getattr(half, "ndim", 0) and hasattr(a, "__array_interface__") and not half:
        return result  # one number, on the host
    plain = xp.where(a == -math.inf, _full(xp, result, math.inf), result + 0.0)
    return xp.where(half, plain, result)
