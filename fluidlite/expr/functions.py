"""Scalar primitives by name: of tensors, which broadcast as in NumPy, of numbers, and of symbols of a scalar rule.

:mod:`fluidlite.codegen.primitives` defines their semantics and accuracy.
"""

from __future__ import annotations

from typing import Any, Protocol, overload

from fluidlite.codegen.expr import Expr, are_scalars, node
from fluidlite.expr.number import Number, Numeric
from fluidlite.expr.tensor import Operand, Tensor, apply_scalar, cast as cast_tensor, function, tensor
from fluidlite.expr.views import full


class Unary(Protocol):
    """A function of a tensor, or of a number."""

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: Expr) -> Expr: ...
    @overload
    def __call__(self, x: Numeric) -> Number: ...


class Binary(Protocol):
    """A function of two tensors, of a tensor and a number, or of numbers."""

    @overload
    def __call__(self, x: Tensor, y: Operand) -> Tensor: ...
    @overload
    def __call__(self, x: Numeric, y: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: Expr, y: Any) -> Expr: ...
    @overload
    def __call__(self, x: Numeric, y: Expr) -> Expr: ...
    @overload
    def __call__(self, x: Numeric, y: Numeric) -> Number: ...


def _unary(name: str, doc: str) -> Unary:
    def apply(x: Operand) -> Any:
        return function(name, x)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = doc
    return apply


def _binary(name: str, doc: str) -> Binary:
    def apply(x: Operand, y: Operand) -> Any:
        return function(name, x, y)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = doc
    return apply


exp = _unary("exp", "Exponential function.")
expm1 = _unary("expm1", "``exp(x) - 1``, exact near 0.")
log = _unary("log", "Natural logarithm.")
log1p = _unary("log1p", "``log(1 + x)``, exact near 0.")
sqrt = _unary("sqrt", "Square root.")
tanh = _unary("tanh", "Hyperbolic tangent.")
sin = _unary("sin", "Sine.")
cos = _unary("cos", "Cosine.")
asin = _unary("asin", "Inverse sine.")
acos = _unary("acos", "Inverse cosine.")
atan = _unary("atan", "Inverse tangent.")
sinh = _unary("sinh", "Hyperbolic sine.")
cosh = _unary("cosh", "Hyperbolic cosine.")
erf = _unary("erf", "The error function.")
normcdf = _unary("normcdf", "The normal distribution function, as exact where it is small.")
normpdf = _unary("normpdf", "The normal density exp(-x * x / 2) / sqrt(2 pi).")
gelu = _unary("gelu", "``x`` times the normal distribution function of it.")
floor = _unary("floor", "Largest whole number not above ``x``.")
ceil = _unary("ceil", "Smallest whole number not below ``x``.")
round_ = _unary("round", "Nearest whole number; halves go away from zero.")
abs_ = _unary("abs", "Absolute value.")
sign = _unary("sign", "-1, 0 or 1; NaN of NaN.")
logical_not = _unary("logical_not", "It is zero.")
isnan = _unary("isnan", "It is NaN.")
isinf = _unary("isinf", "It is plus or minus infinity.")
isfinite = _unary("isfinite", "It is neither NaN nor infinite.")
maximum = _binary("maximum", "The larger; NaN if either is NaN.")
minimum = _binary("minimum", "The smaller; NaN if either is NaN.")
floordiv = _binary("floordiv", "``floor(x / y)``; integers by 0 give 0.")
mod = _binary("mod", "Remainder with the divisor's sign; integers by 0 give 0.")
rem = _binary("rem", "Remainder; of integers with the dividend's sign, of floats with the divisor's.")
logical_and = _binary("logical_and", "Both are not zero.")
logical_or = _binary("logical_or", "At least one is not zero.")
logical_xor = _binary("logical_xor", "Exactly one is not zero.")
equal = _binary("equal", "``x == y``.")
not_equal = _binary("not_equal", "``x != y``; true if either is NaN.")


def rsqrt(x: Any) -> Any:
    """``1 / sqrt(x)``."""
    return 1.0 / sqrt(x)


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``."""
    return 1.0 / (1.0 + exp(-x))


def pow_(x: Any, y: Any) -> Any:
    """``x`` to the power ``y``; constant powers 1 and 2 become exact expressions."""
    return x**y if isinstance(x, (Tensor, Expr, Number)) else function("pow", x, y)


@overload
def where(condition: Tensor, x: Operand, y: Operand) -> Tensor: ...
@overload
def where(condition: Expr, x: Operand, y: Operand) -> Expr: ...
def where(condition: Any, x: Operand, y: Operand) -> Any:
    """``x`` where the condition holds, else ``y``."""
    return node("where", condition, x, y) if are_scalars((condition, x, y)) else apply_scalar("where", condition, x, y)


@overload
def cast(x: Tensor, dtype: str) -> Tensor: ...
@overload
def cast(x: Expr, dtype: str) -> Expr: ...
def cast(x: Any, dtype: str) -> Any:
    """Convert the dtype: to an integer truncates, saturates, and turns NaN into 0; to bool is ``x != 0``."""
    return node("cast", x, value=dtype) if are_scalars((x,)) else cast_tensor(x, dtype)


@overload
def full_like(x: Tensor, value: Numeric = 0.0) -> Tensor: ...
@overload
def full_like(x: Expr, value: Numeric | Expr = 0.0) -> Expr: ...
def full_like(x: Any, value: Any = 0.0) -> Any:
    """``value`` for every element of ``x``, whose memory is not read."""
    return node("like", value, x) if are_scalars((x, value)) else full(x.dims, value, x.dtype)


@overload
def zeros_like(x: Tensor) -> Tensor: ...
@overload
def zeros_like(x: Expr) -> Expr: ...
def zeros_like(x: Any) -> Any:
    """Zero for every element of ``x``, whose memory is not read."""
    return full_like(x, 0)


def stop_gradient(x: Tensor) -> Tensor:
    """``x``, but no derivative flows through it."""
    if x.op == "number":
        return x
    return tensor("stop", (x,), (), x.dims, x.dtype)
