"""What array namespaces lack, in Array-API functions: the helpers that generated array code calls as ``H.name``.

Each takes the namespace first and returns new arrays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.codegen.philox import gaussian, uniform
from fluidlite.codegen.polynomials import GELU_END, NORMAL_END, NORMAL_POWER, NORMAL_TAIL
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
    "normcdf",
    "normpdf",
    "pairwise_sum",
    "pow",
    "round",
    "uniform",
]

ERF_P = (1.12837915, 0.190398317, 0.0527474282, 0.00376520827, 0.000284863954, 2.05002603e-06)
ERF_Q = (1.0, 0.502068859, 0.114105547, 0.0149684048, 0.00116241851, 3.80900934e-05)
"""erf(x) = x P(x*x) / Q(x*x) for |x| <= 3.92 within 2e-8: our fit, for float32."""
ERF_OVER = 4.1
"""There the fit is above 1 by more than it may be rounded down: clipped, it is 1 exactly from there on."""
BLOCK = 1 << 16
"""Elements of an array that stay in cache while one function after the other is applied to them."""

# W. J. Cody, Rational Chebyshev approximations for the error function (1969), for float64.
CODY_A = (
    3.16112374387056560e00,
    1.13864154151050156e02,
    3.77485237685302021e02,
    3.20937758913846947e03,
    1.85777706184603153e-1,
)
CODY_B = (2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03, 2.84423683343917062e03)
CODY_C = (
    5.64188496988670089e-1,
    8.88314979438837594e0,
    6.61191906371416295e01,
    2.98635138197400131e02,
    8.81952221241769090e02,
    1.71204761263407058e03,
    2.05107837782607147e03,
    1.23033935479799725e03,
    2.15311535474403846e-8,
)
CODY_D = (
    1.57449261107098347e01,
    1.17693950891312499e02,
    5.37181101862009858e02,
    1.62138957456669019e03,
    3.29079923573345963e03,
    4.36261909014324716e03,
    3.43936767414372164e03,
    1.23033935480374942e03,
)
CODY_P = (
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
    1.63153871373020978e-2,
)
CODY_Q = (
    2.56852019228982242e00,
    1.87295284992346047e00,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)
INV_SQRT_PI = 0.56418958354775628695
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


def _horner(coefficients: Sequence[float], x: Any) -> Any:
    result = x * coefficients[-1]
    result += coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result *= x
        result += coefficient
    return result


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


def erf(xp: Any, x: Any) -> Any:
    """The error function, for namespaces that have none."""
    if _name(xp, x) == "float64":
        return _erf64(xp, x)
    if hasattr(x, "__array_interface__") and x.ndim:  # host memory
        return _erf_blocks(xp, x)
    end, one = as_number(xp, ERF_OVER, x, "float32"), as_number(xp, 1.0, x, "float32")
    inside = xp.maximum(xp.minimum(x, end), -end)
    square = inside * inside
    value = _horner(ERF_P, square) / _horner(ERF_Q, square)
    return xp.maximum(xp.minimum(value * inside, one), -one)


def _erf_blocks(xp: Any, x: Any) -> Any:
    """The same for float32 arrays of NumPy: blocks that stay in cache, and no new array in each of the steps."""
    flat = xp.reshape(x, (-1,))
    result = xp.empty_like(flat)
    buffers = [xp.empty(min(flat.size, BLOCK), dtype=x.dtype) for _ in range(3)]
    for start in range(0, flat.size, BLOCK):
        value = result[start : start + BLOCK]
        square, upper, lower = (buffer[: value.size] for buffer in buffers)
        xp.clip(flat[start : start + BLOCK], -ERF_OVER, ERF_OVER, out=value)
        xp.multiply(value, value, square)
        for target, coefficients in ((upper, ERF_P), (lower, ERF_Q)):
            xp.multiply(square, coefficients[-1], target)
            xp.add(target, coefficients[-2], target)
            for coefficient in coefficients[-3::-1]:
                xp.multiply(target, square, target)
                xp.add(target, coefficient, target)
        xp.divide(upper, lower, upper)
        xp.multiply(value, upper, value)
        xp.clip(value, -1.0, 1.0, out=value)
    return xp.reshape(result, x.shape)


@_in_blocks
def _erf64(xp: Any, x: Any) -> Any:
    size = xp.abs(x)
    one = _full(xp, size, 1.0)
    y = xp.where(size < 27.0, size, one)
    z = y * y
    rest = one - xp.exp(-z) * _cody_far(xp, y, z)
    outside = xp.sign(x) * xp.where(size < 6.0, rest, one)
    return xp.where(x != x, x, xp.where(size <= 0.46875, x * _cody_near(z), outside))


def _cody_near(z: Any) -> Any:
    """erf(x) / x of z, the square of a small argument."""
    upper, lower = z * CODY_A[4], z
    for a, b in zip(CODY_A[:3], CODY_B[:3], strict=True):
        upper, lower = (upper + a) * z, (lower + b) * z
    return (upper + CODY_A[3]) / (lower + CODY_B[3])


def _cody_far(xp: Any, y: Any, z: Any) -> Any:
    """erfc(y) exp(z), of an argument y that is not small, and its square z."""
    upper, lower = y * CODY_C[8], y
    for c, d in zip(CODY_C[:7], CODY_D[:7], strict=True):
        upper, lower = (upper + c) * y, (lower + d) * y
    middle = (upper + CODY_C[7]) / (lower + CODY_D[7])
    one = _full(xp, y, 1.0)
    r = one / xp.where(y < 1.0, one, z)
    upper, lower = r * CODY_P[5], r
    for p, q in zip(CODY_P[:4], CODY_Q[:4], strict=True):
        upper, lower = (upper + p) * r, (lower + q) * r
    far = (INV_SQRT_PI - r * (upper + CODY_P[4]) / (lower + CODY_Q[4])) / xp.where(y < 1.0, one, y)
    return xp.where(y <= 4.0, middle, far)


@_in_blocks
def normcdf(xp: Any, x: Any) -> Any:
    """The normal distribution function, as exact where it is small: namespaces have none.

    Of -|x| a fraction times exp(-x * x / 2); above 0, that is taken from 1.
    """
    y, density, low = _normal(xp, x)
    above, below = NORMAL_TAIL[_name(xp, x)]
    factor = _horner(above, y) / _horner(below, y)
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
    power = _horner(_GELU_POWER, y)
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
