"""Functions of one value or two, element by element, and products."""

from __future__ import annotations

import builtins
from typing import Any, Protocol

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import ShapeError
from fluidlite.graph.value import Like, Value, binary, called, emit, matmul, pair, value_like
from fluidlite.tensor.var_type import dtype_of


class _OfTwo(Protocol):
    def __call__(self, x: Like, y: Like) -> Value: ...


class _OfOne(Protocol):
    def __call__(self, x: Like) -> Value: ...


def _of_two(name: str, type: str, doc: str) -> _OfTwo:
    def function(x: Like, y: Like) -> Value:
        return binary(type, x, y)

    return called(function, name, doc)


def _of_one(name: str, type: str, doc: str) -> _OfOne:
    def function(x: Like) -> Value:
        return emit(type, {"X": value_like(x)})

    return called(function, name, doc)


# Of two values; NumPy's rule broadcasts, a number takes the dtype of the value beside it.

add = _of_two("add", "elementwise_add", "Return x + y.")
subtract = _of_two("subtract", "elementwise_sub", "Return x - y.")
multiply = _of_two("multiply", "elementwise_mul", "Return x y.")
divide = _of_two("divide", "elementwise_div", "Return x / y; integers truncate toward 0.")
mod = _of_two("mod", "elementwise_mod", "Return the remainder of x / y, with the sign of y.")
power = _of_two("power", "elementwise_pow", "Return x to the power of y.")
maximum = _of_two("maximum", "elementwise_max", "Return the greater of each pair; NaN if one is NaN.")
minimum = _of_two("minimum", "elementwise_min", "Return the lesser of each pair; NaN if one is NaN.")
equal = _of_two("equal", "equal", "Return whether x = y, as bool.")
not_equal = _of_two("not_equal", "not_equal", "Return whether x and y differ, as bool.")
less = _of_two("less", "less_than", "Return whether x < y, as bool.")
less_equal = _of_two("less_equal", "less_equal", "Return whether x <= y, as bool.")
greater = _of_two("greater", "greater_than", "Return whether x > y, as bool.")
greater_equal = _of_two("greater_equal", "greater_equal", "Return whether x >= y, as bool.")


def where(condition: Like, x: Like, y: Like) -> Value:
    """Return elements of x where a bool condition holds, else of y; all three of the same dims."""
    left, right = pair(x, y)
    return emit("where", {"Condition": value_like(condition, "bool", left), "X": left, "Y": right})


def dot(x: Like, y: Like) -> Value:
    """Return sums of products over the last dim of x and the last but one (or only) of y, as ``numpy.dot``.

    Raises
    ------
    ValueError
        If those dims differ, or y has more than two dims (use :func:`matmul`).
    """
    left, right = pair(x, y)
    if not left.shape or not right.shape:
        return binary("elementwise_mul", left, right)
    if len(right.shape) > 2:
        raise ShapeError(
            f"dot of {list(left.shape)} and {list(right.shape)}: y has more than two dims\n  Do: ng.matmul"
        )
    if len(left.shape) <= 2:
        return matmul(left, right)
    if builtins.sum(d < 0 for d in left.shape[:-1]) > 1 or len(right.shape) == 1:
        return matmul(left, right)
    rows = emit("reshape2", {"X": left}, {"shape": [-1, left.shape[-1]]})  # one large product, not many small ones
    return emit("reshape2", {"X": matmul(rows, right)}, {"shape": [*left.shape[:-1], right.shape[-1]]})


# Of one value

absolute = _of_one("absolute", "abs", "Return the absolute value of x.")
sqrt = _of_one("sqrt", "sqrt", "Return the square root of x.")
square = _of_one("square", "square", "Return x x.")
exp = _of_one("exp", "exp", "Return e to the power of x.")
log = _of_one("log", "log", "Return the natural logarithm of x.")
tanh = _of_one("tanh", "tanh", "Return the hyperbolic tangent of x.")
sigmoid = _of_one("sigmoid", "sigmoid", "Return 1 / (1 + exp(-x)).")
relu = _of_one("relu", "relu", "Return max(x, 0).")
sign = _of_one("sign", "sign", "Return -1, 0 or 1, the sign of x.")
reciprocal = _of_one("reciprocal", "reciprocal", "Return 1 / x.")
sin = _of_one("sin", "sin", "Return the sine of x.")
cos = _of_one("cos", "cos", "Return the cosine of x.")
floor = _of_one("floor", "floor", "Return the largest whole number that is no more than x.")
erf = _of_one("erf", "erf", "Return the error function of x.")


def negative(x: Like) -> Value:
    """Return -x."""
    return emit("scale", {"X": value_like(x)}, {"scale": -1.0})


def safelog(x: Like) -> Value:
    """Return the natural logarithm of x, at least -50."""
    value = value_like(x)
    return emit("log", {"X": binary("elementwise_max", value, 1.9287498479639178e-22)})


def cast(x: Like, dtype: Any) -> Value:
    """Return x as another dtype; floats become integers toward 0."""
    value, wanted = value_like(x), dtype_of(dtype)
    out = emit("cast", {"X": value}, {"in_dtype": value.dtype, "out_dtype": wanted})
    out.stop_gradient = not is_float(wanted)
    return out


def stop_gradient(x: Like) -> Value:
    """Return x as it is; derivatives do not pass it."""
    return emit("assign", {"X": value_like(x)}, fixed=True)
