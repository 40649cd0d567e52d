"""Functions that array namespaces lack, written with Array-API functions: helpers of generated array code.

Each takes the namespace, or ``where`` the context, as first argument, and returns new arrays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.codegen.philox import gaussian as gaussian, uniform as uniform
from fluidlite.codegen.polynomials import (
    ERF64_LIMIT,
    ERF64_P,
    ERF64_Q,
    ERF_CLIP,
    ERF_P,
    ERF_Q,
    GELU_END,
    NORMAL_END,
    NORMAL_POWER,
    NORMAL_TAIL,
    horner,
)
from fluidlite.codegen.sums import pairwise_sum as pairwise_sum

BLOCK = 1 << 16
"""Elements of a block that stays in cache while several functions are applied to it."""

INV_SQRT_2PI = 0.39894228040143267794
_MIN_SUBNORMAL = 2.0**-149
"""The smallest positive number in float32."""
_GELU_POWER = tuple(math.log(2) * coefficient for coefficient in NORMAL_POWER)


def dtype_object(xp: Any, dtype: str) -> Any:
    """The namespace's dtype of that name; that of NumPy or ml_dtypes (bfloat16) where it has none."""
    native = getattr(xp, dtype, None)
    return NUMPY[dtype] if native is None else native


def where(context: Any, condition: Any, a: Any, b: Any, out: Any = None) -> Any:
    """Elementwise selection, by the device's own function if it has a faster one."""
    device_function = context.array.extra("where")
    if device_function is not None:
        return device_function(condition, a, b) if out is None else device_function(condition, a, b, out)
    chosen = context.xp.where(condition, a, b)
    if out is None:
        return chosen
    out[...] = chosen
    return out


def as_number(xp: Any, value: Any, like: Any, dtype: str) -> Any:
    """A number as an array without dims, or a tuple of numbers as an array of one dim, on the device of ``like``."""
    kind = dtype_object(xp, dtype)
    try:
        return xp.asarray(value, dtype=kind, device=like.device)
    except TypeError:  # a namespace with one device lacks the argument
        return xp.asarray(value, dtype=kind)


def _full(xp: Any, like: Any, value: Any) -> Any:
    """A number as operand beside an array, in its dtype: namespaces compare arrays only with arrays."""
    return like.dtype.type(value) if type(like) is np.ndarray else xp.full_like(like, value)


def cast(xp: Any, x: Any, dtype: str) -> Any:
    """Convert the dtype: float to integer truncates, saturates, and turns NaN into 0."""
    target = dtype_object(xp, dtype)
    if dtype == "bool":
        return x != 0
    if not dtype.startswith(("int", "uint")) or not xp.isdtype(x.dtype, "real floating"):
        return xp.astype(x, target)
    limits = xp.iinfo(target)
    low, high = int(limits.min), int(limits.max)
    if x.size and hasattr(x, "__array_interface__") and x.min() >= low and x.max() < float(high + 1):
        return xp.astype(x, target)  # in host memory, without saturation (NaN fails the test): 20 times faster
    too_high = x >= float(high + 1)
    too_low = x < float(low)
    safe = xp.where(too_high | too_low | (x != x), _full(xp, x, 0.0), x)
    result = xp.astype(safe, target)
    return xp.where(too_high, _full(xp, result, high), xp.where(too_low, _full(xp, result, low), result))


def round(xp: Any, x: Any) -> Any:
    """Nearest whole number, halves away from zero; exact, unlike ``floor(x + 0.5)``."""
    whole = xp.trunc(x)
    return xp.where(xp.abs(x - whole) >= 0.5, whole + xp.sign(x), whole)


def floor_div(xp: Any, a: Any, b: Any) -> Any:
    """``floor(a / b)`` for floats."""
    return xp.floor(a / b)


def _broadcast(xp: Any, a: Any, b: Any) -> tuple[Any, Any]:
    pair: list[Any] = list(xp.broadcast_arrays(xp.asarray(a), xp.asarray(b)))
    return pair[0], pair[1]


def int_div(xp: Any, a: Any, b: Any) -> Any:
    """Quotient truncated toward zero; 0 for a division by zero; the lowest integer by -1 wraps."""
    a, b = _broadcast(xp, a, b)
    one, zero = _full(xp, b, 1), _full(xp, b, 0)
    if not xp.isdtype(b.dtype, "signed integer"):
        return xp.where(b == 0, zero, a // xp.where(b == 0, one, b))
    safe = xp.where((b == 0) | (b == -1), one, b)
    quotient = a // safe
    quotient = xp.where((quotient * safe != a) & ((a < 0) != (safe < 0)), quotient + one, quotient)
    return xp.where(b == 0, zero, xp.where(b == -1, zero - a, quotient))


def _on_host(xp: Any, name: str, a: Any, b: Any) -> Any:
    """The result of NumPy's function for integers on the host, which handles 0 and -1 as we do; else None."""
    if not (hasattr(a, "__array_interface__") and hasattr(xp, "errstate")):
        return None
    with xp.errstate(all="ignore"):
        return getattr(xp, name)(a, b)


def int_floor_div(xp: Any, a: Any, b: Any) -> Any:
    """Quotient rounded down; 0 for a division by zero."""
    result = _on_host(xp, "floor_divide", a, b)
    if result is not None:
        return result
    a, b = _broadcast(xp, a, b)
    one, zero = _full(xp, b, 1), _full(xp, b, 0)
    if not xp.isdtype(b.dtype, "signed integer"):
        return int_div(xp, a, b)
    safe = xp.where((b == 0) | (b == -1), one, b)
    return xp.where(b == 0, zero, xp.where(b == -1, zero - a, a // safe))


def int_mod(xp: Any, a: Any, b: Any) -> Any:
    """Remainder with the divisor's sign; 0 for a division by zero."""
    result = _on_host(xp, "remainder", a, b)
    if result is not None:
        return result
    a, b = _broadcast(xp, a, b)
    one, zero = _full(xp, b, 1), _full(xp, b, 0)
    if xp.isdtype(b.dtype, "signed integer"):
        safe = xp.where((b == 0) | (b == -1), one, b)
        return xp.where((b == 0) | (b == -1), zero, a % safe)
    return xp.where(b == 0, zero, a % xp.where(b == 0, one, b))


def int_rem(xp: Any, a: Any, b: Any) -> Any:
    """Remainder with the dividend's sign; 0 for a division by zero."""
    result = _on_host(xp, "fmod", a, b)
    if result is not None:
        return result
    a, b = _broadcast(xp, a, b)
    return xp.where(b == 0, _full(xp, b, 0), a - b * int_div(xp, a, b))


def int_pow(xp: Any, a: Any, b: Any) -> Any:
    """Power by squaring, wrapping; 0 for a negative exponent, except for bases 1 and -1."""
    a, b = _broadcast(xp, a, b)
    one, zero = _full(xp, a, 1), _full(xp, a, 0)
    result, square = one, a
    left = xp.where(b < 0, b & 1, b)  # 1 and -1 to a negative power depend only on its parity
    for _ in range(8 * xp.iinfo(b.dtype).bits // 8):
        result = xp.where((left & 1) != 0, result * square, result)
        square = square * square
        left = left >> 1
    if not xp.isdtype(b.dtype, "signed integer"):
        return result
    return xp.where((b < 0) & (a != one) & (a != zero - one), zero, result)


def _in_blocks(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Apply an elementwise function to large NumPy arrays block by block."""

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
    """The error function, for namespaces without it."""
    if _name(xp, x) == "float64":
        return _erf64(xp, x)
    inside = xp.clip(x, -ERF_CLIP, ERF_CLIP)
    square = inside * inside
    value = horner(ERF_P, square)
    value /= horner(ERF_Q, square)
    value *= inside
    return xp.clip(value, -1.0, 1.0)


def _erf64(xp: Any, x: Any) -> Any:
    """A rational function for small arguments; for others, 1 minus twice a normal distribution function."""
    size = xp.abs(x)
    z = size * size
    small = x * (horner(ERF64_P, z) / horner(ERF64_Q, z))
    large = 1.0 - 2.0 * normcdf(xp, size * -math.sqrt(2))
    return xp.where(size < ERF64_LIMIT, small, large * xp.sign(x))


@_in_blocks
def normcdf(xp: Any, x: Any) -> Any:
    """The normal distribution function, with small relative error also where it is small.

    For -|x| a rational function times exp(-x * x / 2); above 0, 1 minus that.
    """
    y, density, low = _normal(xp, x)
    above, below = NORMAL_TAIL[_name(xp, x)]
    factor = horner(above, y) / horner(below, y)
    tail = density * (factor - factor * low)
    return xp.abs(xp.astype(x > 0, tail.dtype) - tail)  # 1 - tail above 0: NumPy's where takes ten times as long


@_in_blocks
def gelu(xp: Any, x: Any) -> Any:
    """``x`` times the normal distribution function; x is clamped to the argument where that is 0.

    In float32 the function of -|x| is a power, and |x| times it is subtracted from max(x, 0).
    """
    if _name(xp, x) == "float64":
        return xp.maximum(x, _full(xp, x, -NORMAL_END["float64"])) * normcdf(xp, x)
    y = xp.abs(xp.clip(x, -GELU_END, GELU_END))
    power = horner(_GELU_POWER, y)
    power *= y
    y *= 0.5
    y *= xp.exp(power)
    return xp.maximum(x, _full(xp, x, -_MIN_SUBNORMAL)) - y  # not with 0: the maximum of 0 and -0 is unspecified


@_in_blocks
def normpdf(xp: Any, x: Any) -> Any:
    """The normal density."""
    _, density, low = _normal(xp, x)
    return density * (INV_SQRT_2PI - INV_SQRT_2PI * low)


def _name(xp: Any, x: Any) -> str:
    return "float64" if x.dtype == getattr(xp, "float64", None) else "float32"


def _normal(xp: Any, x: Any) -> tuple[Any, Any, Any]:
    """The clamped |x| as y, exp(-y * y / 2), and its relative error by the rounding of the square.

    The rounding error is computed from halves of the factors (Dekker, 1971).
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
    """C's power: namespaces compute a square root if all exponents are 1/2, which differs for -infinity and -0."""
    result = xp.pow(a, b)
    half = b == 0.5
    if not getattr(half, "ndim", 0) and hasattr(a, "__array_interface__") and not half:
        return result  # a number on the host
    corrected = xp.where(a == -math.inf, _full(xp, result, math.inf), result + 0.0)
    return xp.where(half, corrected, result)
