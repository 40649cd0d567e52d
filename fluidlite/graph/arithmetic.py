"""Elementwise functions of one or two values, and matrix products."""

from __future__ import annotations

import builtins
from typing import Any, Protocol

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import ShapeError
from fluidlite.graph.value import Like, Value, binary, emit, matmul, named_function, pair, value_like
from fluidlite.tensor.var_type import dtype_of


class _BinaryFunction(Protocol):
    def __call__(self, x: Like, y: Like) -> Value: ...


class _UnaryFunction(Protocol):
    def __call__(self, x: Like) -> Value: ...


def _binary_function(name: str, type: str, doc: str) -> _BinaryFunction:
    def function(x: Like, y: Like) -> Value:
        return binary(type, x, y)

    return named_function(function, name, doc)


def _unary_function(name: str, type: str, doc: str) -> _UnaryFunction:
    def function(x: Like) -> Value:
        return emit(type, {"X": value_like(x)})

    return named_function(function, name, doc)


# Binary functions: operands broadcast as in NumPy; a number takes the dtype of the other operand.

add = _binary_function("add", "elementwise_add", "Return x + y.")
subtract = _binary_function("subtract", "elementwise_sub", "Return x - y.")
multiply = _binary_function("multiply", "elementwise_mul", "Return x y.")
divide = _binary_function("divide", "elementwise_div", "Return x / y; integers truncate toward 0.")
mod = _binary_function("mod", "elementwise_mod", "Return the remainder of x / y, with the sign of y.")
power = _binary_function("power", "elementwise_pow", "Return x to the power of y.")
maximum = _binary_function("maximum", "elementwise_max", "Return the elementwise maximum; NaN if one operand is NaN.")
minimum = _binary_function("minimum", "elementwise_min", "Return the elementwise minimum; NaN if one operand is NaN.")
equal = _binary_function("equal", "equal", "Return whether x = y, as bool.")
not_equal = _binary_function("not_equal", "not_equal", "Return whether x and y differ, as bool.")
less = _binary_function("less", "less_than", "Return whether x < y, as bool.")
less_equal = _binary_function("less_equal", "less_equal", "Return whether x <= y, as bool.")
greater = _binary_function("greater", "greater_than", "Return whether x > y, as bool.")
greater_equal = _binary_function("greater_equal", "greater_equal", "Return whether x >= y, as bool.")


def where(condition: Like, x: Like, y: Like) -> Value:
    """Return elements of x where a bool condition is true, else of y; all three have the same dims."""
    left, right = pair(x, y)
    return emit("where", {"Condition": value_like(condition, "bool", left), "X": left, "Y": right})


def dot(x: Like, y: Like) -> Value:
    """Return the contraction of the last dim of x with the second to last (or only) dim of y, as ``numpy.dot``.

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
    rows = emit("reshape2", {"X": left}, {"shape": [-1, left.shape[-1]]})  # one large matmul instead of many small ones
    return emit("reshape2", {"X": matmul(rows, right)}, {"shape": [*left.shape[:-1], right.shape[-1]]})


# Unary functions

absolute = _unary_function("absolute", "abs", "Return the absolute value of x.")
sqrt = _unary_function("sqrt", "sqrt", "Return the square root of x.")
square = _unary_function("square", "square", "Return x x.")
exp = _unary_function("exp", "exp", "Return e to the power of x.")
log = _unary_function("log", "log", "Return the natural logarithm of x.")
tanh = _unary_function("tanh", "tanh", "Return the hyperbolic tangent of x.")
sigmoid = _unary_function("sigmoid", "sigmoid", "Return 1 / (1 + exp(-x)).")
relu = _unary_function("relu", "relu", "Return max(x, 0).")
sign = _unary_function("sign", "sign", "Return -1, 0 or 1, the sign of x.")
reciprocal = _unary_function("reciprocal", "reciprocal", "Return 1 / x.")
sin = _unary_function("sin", "sin", "Return the sine of x.")
cos = _unary_function("cos", "cos", "Return the cosine of x.")
floor = _unary_function("floor", "floor", "Return the largest integer that is not greater than x.")
erf = _unary_function("erf", "erf", "Return the error function of x.")


def negative(x: Like) -> Value:
    """Return -x."""
    return emit("scale", {"X": value_like(x)}, {"scale": -1.0})


def safelog(x: Like) -> Value:
    """Return the natural logarithm of x, at least -50."""
    value = value_like(x)
    return emit("log", {"X": binary("elementwise_max", value, 1.9287498479639178e-22)})


def cast(x: Like, dtype: Any) -> Value:
    """Return x cast to another dtype; floats are truncated to integers toward 0."""
    value, target = value_like(x), dtype_of(dtype)
    out = emit("cast", {"X": value}, {"in_dtype": value.dtype, "out_dtype": target})
    out.stop_gradient = not is_float(target)
    return out


def stop_gradient(x: Like) -> Value:
    """Return x; no derivative flows through it."""
    return emit("assign", {"X": value_like(x)}, fixed=True)
