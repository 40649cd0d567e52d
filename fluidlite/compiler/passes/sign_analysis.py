"""What is known of the numbers in a value: whether a constant is one number, and whether a zero may be negative."""

from __future__ import annotations

from math import copysign
from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue

_NEVER = frozenset({"abs", "exp", "sigmoid", "square", "softmax", "one_hot", "fill_zeros_like"})
"""Operators whose floats are never -0.0, whatever they are given."""

_PASSED_ON = frozenset(
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
"""Operators whose zeros are the zeros of their first input."""


def floating(value: GraphValue) -> bool:
    return value.spec is not None and is_float(value.spec.dtype)


def negative(number: float) -> bool:
    """Whether a number has a minus sign; -0.0 has."""
    return copysign(1.0, number) < 0


def is_number(value: GraphValue, number: float) -> bool:
    """Whether a constant is a number everywhere; a zero of floats with its sign."""
    found: Any = value.const
    if found is None or found != number:
        return False
    return bool(found) or not floating(value) or negative(found) == negative(number)


def may_be_minus_zero(value: GraphValue) -> bool:
    """Whether a value may have an element -0.0, as far as its operators tell."""
    while value.op is not None and value.op.type in _PASSED_ON and value.op.args:
        value = value.op.args[0]
    if not floating(value):
        return False
    if value.const is not None:
        return value.const == 0 and negative(value.const)
    return value.op is None or not _ends_plus_zero(value.op)


def _ends_plus_zero(op: GraphOp) -> bool:
    """Whether an operator makes no -0.0: by its nature, or because it ends by adding 0.0 to something."""
    if op.type == "cast":
        return not floating(op.args[0])  # a narrower float makes -0.0 of small negative numbers
    if op.type == "scale" and len(op.args) == 1:  # a smaller factor makes -0.0 of them too, where it is one instruction
        bias, factor = op.attrs["bias"], op.attrs["scale"]
        return bool(op.attrs["bias_after_scale"] and bias == 0 and not negative(bias) and abs(factor) >= 1)
    if op.type == "elementwise_add":
        return any(is_number(arg, 0.0) for arg in op.args)
    return op.type in _NEVER
