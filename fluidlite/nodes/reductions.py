"""Reductions Sum, Mean and Variance; Select, Mask and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from fluidlite import graph as ng
from fluidlite.graph.value import Value, check_representable, emit
from fluidlite.nodes.node import Node, is_number
from fluidlite.nodes.node_program import Kind
from fluidlite.nodes.operator_node import OperatorNode, binary, operator_node, unary
from fluidlite.nodes.shaping import _ints


def _sum(*items: Value) -> Value:
    total = items[0] if len(items) == 1 else emit("sum", {"X": list(items)})
    return ng.sum(total)


def _condition(value: Value) -> Value:
    return value if value.dtype == "bool" else ng.not_equal(value, 0)


def _mask(x: Value, mask: Value, number: float) -> Value:
    check_representable(number, x.dtype)
    attrs = {"shape": list(x.shape), "value": number, "dtype": x.dtype}
    filled = emit("fill_constant", {}, attrs, fixed=True, beside=x)
    return ng.where(ng.broadcast(_condition(mask), x.shape), x, filled)


SUM = Kind("Sum", _sum)
AXIS_SUM = Kind("AxisSum", ng.sum)
AXIS_MEAN = Kind("AxisMean", ng.mean)
SELECT = Kind("Select", lambda condition, x, y: ng.where(_condition(condition), x, y), (1, 2))
MASK = Kind("Mask", _mask, (0,))
LESS_SCALAR = Kind("LessThan", lambda x, number: ng.less(x, number))
GREATER_SCALAR = Kind("GreaterThan", lambda x, number: ng.greater(x, number))


def Sum(*inputs: Node) -> OperatorNode:
    """The sum of all elements, of dims (); of several nodes of equal dims, of all of them."""
    return operator_node(SUM, inputs)


def AxisSum(x: Node, axes: Union[int, Sequence[int]]) -> OperatorNode:
    """The sum over axes, which are no axes of the result."""
    return operator_node(AXIS_SUM, (x,), (("axis", _axes(axes)),))


def AxisMean(x: Node, axes: Union[int, Sequence[int]]) -> OperatorNode:
    """The mean over axes, which are no axes of the result."""
    return operator_node(AXIS_MEAN, (x,), (("axis", _axes(axes)),))


def _axes(axes: Union[int, Sequence[int]]) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else _ints("axes", axes)


Mean = unary(Kind("Mean", ng.mean), "The mean of all elements, of dims ().")
Variance = unary(Kind("Variance", ng.variance), "The mean of the squared distances from the mean, of dims ().")


def Select(condition: Node, x: Node, y: Node) -> OperatorNode:
    """``x`` where the condition is not 0, else ``y``."""
    return operator_node(SELECT, (condition, x, y))


def Mask(x: Node, mask: Node, number: float) -> OperatorNode:
    """``x`` where the mask is not 0, else a number; the mask is broadcast."""
    return operator_node(MASK, (x, mask), (("number", float(number)),))


def InPlaceMask(x: Node, mask: Node, number: float) -> OperatorNode:
    """``Mask(x, mask, number)``, written over ``x``."""
    return operator_node(MASK, (x, mask), (("number", float(number)),), True)


LessThan = binary(Kind("LessThan", ng.less), "Whether ``a < b``, as bool; it has no gradient.")


def _less(left: Node, right: Any) -> Node:
    if is_number(right):
        return operator_node(LESS_SCALAR, (left,), (("number", right),))
    return LessThan(left, right)


def _greater(left: Node, right: Any) -> Node:
    if is_number(right):
        return operator_node(GREATER_SCALAR, (left,), (("number", right),))
    return LessThan(right, left)


Node.__lt__ = _less  # type: ignore[method-assign]
Node.__gt__ = _greater  # type: ignore[method-assign]
