"""Functions of one value or two, element by element, and products."""

from __future__ import annotations

import builtins
from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import ShapeError
from fluidlite.graph.value import Like, Value, binary, emit, matmul, pair, value_like
from fluidlite.tensor.var_type import dtype_of

# Of two values; NumPy's rule broadcasts, a number takes the dtype of the value beside it.


def add(x: Like, y: Like) -> Value:
    """Return x + y."""
    return binary("elementwise_add", x, y)


def subtract(x: Like, y: Like) -> Value:
    """Return x - y."""
    return binary("elementwise_sub", x, y)


def multiply(x: Like, y: Like) -> Value:
    """Return x y."""
    return binary("elementwise_mul", x, y)


def divide(x: Like, y: Like) -> Value:
    """Return x / y; integers truncate toward 0."""
    return binary("elementwise_div", x, y)


def mod(x: Like, y: Like) -> Value:
    """Return the remainder of x / y, with the sign of y."""
    return binary("elementwise_mod", x, y)


def power(x: Like, y: Like) -> Value:
    """Return x to the power of y."""
    return binary("elementwise_pow", x, y)


def maximum(x: Like, y: Like) -> Value:
    """Return the greater of each pair; NaN if one is NaN."""
    return binary("elementwise_max", x, y)


def minimum(x: Like, y: Like) -> Value:
    """Return the lesser of each pair; NaN if one is NaN."""
    return binary("elementwise_min", x, y)


def equal(x: Like, y: Like) -> Value:
    """Return whether x = y, as bool."""
    return binary("equal", x, y)


def not_equal(x: Like, y: Like) -> Value:
    """Return whether x and y differ, as bool."""
    return binary("not_equal", x, y)


def less(x: Like, y: Like) -> Value:
    """Return whether x < y, as bool."""
    return binary("less_than", x, y)


def less_equal(x: Like, y: Like) -> Value:
    """Return whether x <= y, as bool."""
    return binary("less_equal", x, y)


def greater(x: Like, y: Like) -> Value:
    """Return whether x > y, as bool."""
    return binary("greater_than", x, y)


def greater_equal(x: Like, y: Like) -> Value:
    """Return whether x >= y, as bool."""
    return binary("greater_equal", x, y)


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


def negative(x: Like) -> Value:
    """Return -x."""
    return emit("scale", {"X": value_like(x)}, {"scale": -1.0})


def absolute(x: Like) -> Value:
    """Return the absolute value of x."""
    return emit("abs", {"X": value_like(x)})


def sqrt(x: Like) -> Value:
    """Return the square root of x."""
    return emit("sqrt", {"X": value_like(x)})


def square(x: Like) -> Value:
    """Return x x."""
    return emit("square", {"X": value_like(x)})


def exp(x: Like) -> Value:
    """Return e to the power of x."""
    return emit("exp", {"X": value_like(x)})


def log(x: Like) -> Value:
    """Return the natural logarithm of x."""
    return emit("log", {"X": value_like(x)})


def safelog(x: Like) -> Value:
    """Return the natural logarithm of x, at least -50."""
    value = value_like(x)
    return emit("log", {"X": binary("elementwise_max", value, 1.9287498479639178e-22)})


def tanh(x: Like) -> Value:
    """Return the hyperbolic tangent of x."""
    return emit("tanh", {"X": value_like(x)})


def sigmoid(x: Like) -> Value:
    """Return 1 / (1 + exp(-x))."""
    return emit("sigmoid", {"X": value_like(x)})


def relu(x: Like) -> Value:
    """Return max(x, 0)."""
    return emit("relu", {"X": value_like(x)})


def sign(x: Like) -> Value:
    """Return -1, 0 or 1, the sign of x."""
    return emit("sign", {"X": value_like(x)})


def reciprocal(x: Like) -> Value:
    """Return 1 / x."""
    return emit("reciprocal", {"X": value_like(x)})


def sin(x: Like) -> Value:
    """Return the sine of x."""
    return emit("sin", {"X": value_like(x)})


def cos(x: Like) -> Value:
    """Return the cosine of x."""
    return emit("cos", {"X": value_like(x)})


def floor(x: Like) -> Value:
    """Return the largest whole number that is no more than x."""
    return emit("floor", {"X": value_like(x)})


def erf(x: Like) -> Value:
    """Return the error function of x."""
    return emit("erf", {"X": value_like(x)})


def cast(x: Like, dtype: Any) -> Value:
    """Return x as another dtype; floats become integers toward 0."""
    value, wanted = value_like(x), dtype_of(dtype)
    out = emit("cast", {"X": value}, {"in_dtype": value.dtype, "out_dtype": wanted})
    out.stop_gradient = not is_float(wanted)
    return out


def stop_gradient(x: Like) -> Value:
    """Return x as it is; derivatives do not pass it."""
    return emit("assign", {"X": value_like(x)}, fixed=True)
