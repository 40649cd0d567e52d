"""Sign analysis: whether a constant is one number, and whether a value may contain -0.0."""

from __future__ import annotations

from math import copysign
from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue

_NO_MINUS_ZERO = frozenset({"abs", "exp", "sigmoid", "square", "softmax", "one_hot", "fill_zeros_like"})
"""Operators whose results never contain -0.0, for any input."""

_SIGN_PRESERVING = frozenset(
    {
        "assign",
        "reshape",
        "reshape2",
        "transpose",
        "transpose2",
        "squeeze",
        "squeeze2",
        "unsqueeze",
        "unsqueeze2",
        "flatten",
        "flatten2",
        "expand",
        "slice",
        "relu",
    }
)
"""Operators that preserve the zeros of their first input, with signs."""


def is_floating(value: GraphValue) -> bool:
    return value.spec is not None and is_float(value.spec.dtype)


def is_negative(number: float) -> bool:
    """Whether the sign bit of a number is set, as that of -0.0 is."""
    return copysign(1.0, number) < 0


def is_number(value: GraphValue, number: float) -> bool:
    """Whether a value is a constant equal to a number; zeros of floats with equal signs."""
    constant: Any = value.const
    if constant is None or constant != number:
        return False
    return bool(constant) or not is_floating(value) or is_negative(constant) == is_negative(number)


def can_be_minus_zero(value: GraphValue) -> bool:
    """Whether a value may contain -0.0, as far as its operators tell."""
    while value.op is not None and value.op.type in _SIGN_PRESERVING and value.op.args:
        value = value.op.args[0]
    if not is_floating(value):
        return False
    if value.const is not None:
        return value.const == 0 and is_negative(value.const)
    return value.op is None or not _excludes_minus_zero(value.op)


def _excludes_minus_zero(op: GraphOp) -> bool:
    """Whether an operator never writes -0.0: by its definition, or because it adds 0.0 last."""
    if op.type == "cast":
        return not is_floating(op.args[0])  # narrowing rounds small negative numbers to -0.0
    if op.type == "scale" and len(op.args) == 1:  # so does a smaller factor, in a fused multiply-add
        bias, factor = op.attrs["bias"], op.attrs["scale"]
        return bool(op.attrs["bias_after_scale"] and bias == 0 and not is_negative(bias) and abs(factor) >= 1)
    if op.type == "elementwise_add":
        return any(is_number(arg, 0.0) for arg in op.args)
    return op.type in _NO_MINUS_ZERO
