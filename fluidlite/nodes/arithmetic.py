"""Arithmetic nodes: sums, differences, products, quotients and maxima; and Python's operators on nodes."""

from __future__ import annotations

from typing import Any

from fluidlite import graph as ng
from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import NodeError
from fluidlite.graph.value import Value, check_representable, emit
from fluidlite.nodes.node import Node, is_number
from fluidlite.nodes.node_program import Kind
from fluidlite.nodes.operator_node import OperatorNode, binary, operator_node


def _add(*terms: Value) -> Value:
    if len(terms) == 1:
        return emit("assign", {"X": terms[0]})
    if len(terms) == 2:
        return ng.add(*terms)
    return emit("sum", {"X": list(terms)})


def _scale_value(x: Value, scale: float, bias: float) -> Value:
    if not is_float(x.dtype):
        return ng.add(ng.multiply(x, scale), bias)  # these keep integers exact
    check_representable(scale, x.dtype)
    check_representable(bias, x.dtype)
    return emit("scale", {"X": x}, {"scale": float(scale), "bias": float(bias)})


def _subtract_from(x: Value, number: float) -> Value:
    return _scale_value(x, -1, number) if is_float(x.dtype) else ng.subtract(number, x)


def _divide_by(x: Value, number: float) -> Value:
    return _scale_value(x, 1 / number, 0) if is_float(x.dtype) else ng.divide(x, number)


def _divide_number(x: Value, number: float) -> Value:
    return _scale_value(ng.reciprocal(x), number, 0) if is_float(x.dtype) else ng.divide(number, x)


ADD = Kind("Add", _add, (0, 1))
SUBTRACT = Kind("Subtract", ng.subtract, (0, 1))
CWISE_PROD = Kind("CwiseProd", ng.multiply, (0, 1))
CWISE_DIV = Kind("CwiseDiv", ng.divide, (0, 1))
CWISE_MAX = Kind("CwiseMax", ng.maximum, (0, 1))
CWISE_PROD_ADD = Kind("CwiseProdAdd", lambda x, y, z: ng.add(ng.multiply(x, y), z), (2, 0, 1))
ADD_SCALAR = Kind("AddScalar", _scale_value, (0,))
SUBTRACT_SCALAR = Kind("SubtractScalar", _subtract_from, (0,))
PROD_SCALAR = Kind("ProdScalar", _scale_value, (0,))
DIV_SCALAR = Kind("DivScalar", _divide_by, (0,))
SCALAR_DIV = Kind("ScalarDiv", _divide_number)
_SCALE_1, _NO_BIAS = ("scale", 1), ("bias", 0)


def _number(function: str, item: Any) -> float:
    if not is_number(item):
        raise NodeError(f"{function} takes a number, got {item!r:.60}")
    number: float = item
    return number


def _scale_node(kind: Kind, x: Node, scale: float, bias: float, inplace: bool = False) -> OperatorNode:
    return operator_node(kind, (x,), (("scale", scale), ("bias", bias)), inplace)


def Add(*inputs: Node) -> OperatorNode:
    """The sum of two nodes, broadcast as in NumPy, or of more nodes with equal dims."""
    return operator_node(ADD, inputs)


InPlaceAdd = binary(ADD, "``a + b``, written over ``a``.", inplace=True)


def AddScalar(x: Node, number: float) -> OperatorNode:
    """``x + number``."""
    return _scale_node(ADD_SCALAR, x, 1, _number("AddScalar", number))


def InPlaceAddScalar(x: Node, number: float) -> OperatorNode:
    """``x + number``, written over ``x``."""
    return _scale_node(ADD_SCALAR, x, 1, _number("InPlaceAddScalar", number), True)


Subtract = binary(SUBTRACT, "``a - b``.")
InPlaceSubtract = binary(SUBTRACT, "``a - b``, written over ``a``.", inplace=True)


def SubtractScalar(number: float, x: Node) -> OperatorNode:
    """``number - x``."""
    return operator_node(SUBTRACT_SCALAR, (x,), (("number", _number("SubtractScalar", number)),))


def ProdScalar(x: Node, number: float) -> OperatorNode:
    """``x * number``."""
    return _scale_node(PROD_SCALAR, x, _number("ProdScalar", number), 0)


def InPlaceProdScalar(x: Node, number: float) -> OperatorNode:
    """``x * number``, written over ``x``."""
    return _scale_node(PROD_SCALAR, x, _number("InPlaceProdScalar", number), 0, True)


CwiseProd = binary(CWISE_PROD, "``a * b``, element by element; broadcast as NumPy does.")
InPlaceCwiseProd = binary(
    CWISE_PROD, "``a * b``, written over ``a``: safe where ``b`` has no gradient, which would read ``a``.", inplace=True
)
CwiseDiv = binary(CWISE_DIV, "``a / b``, element by element.")


def CwiseProdAdd(a: Node, b: Node, c: Node) -> OperatorNode:
    """``a * b + c``, element by element."""
    return operator_node(CWISE_PROD_ADD, (a, b, c))


def CwiseMax(first: Node, second: Node, *further: Node) -> OperatorNode:
    """The maximum of two nodes or more, element by element."""
    maximum = operator_node(CWISE_MAX, (first, second))
    for item in further:
        maximum = operator_node(CWISE_MAX, (maximum, item))
    return maximum


# Python's operators on nodes. A graph may be built for each sample, so each calls operator_node directly -----------


def add(left: Node, right: Any) -> OperatorNode:
    if type(right) is not OperatorNode and is_number(right):
        return operator_node(ADD_SCALAR, (left,), (_SCALE_1, ("bias", right)))
    return operator_node(ADD, (left, right))


def subtract(left: Node, right: Any) -> OperatorNode:
    if type(right) is not OperatorNode and is_number(right):
        return operator_node(ADD_SCALAR, (left,), (_SCALE_1, ("bias", -right)))
    return operator_node(SUBTRACT, (left, right))


def multiply(left: Node, right: Any) -> OperatorNode:
    if type(right) is not OperatorNode and is_number(right):
        return operator_node(PROD_SCALAR, (left,), (("scale", right), _NO_BIAS))
    return operator_node(CWISE_PROD, (left, right))


def divide(left: Node, right: Any) -> OperatorNode:
    if is_number(right):
        if right == 0:
            raise NodeError(f"{left} is divided by the number 0")
        return operator_node(DIV_SCALAR, (left,), (("number", right),))
    return operator_node(CWISE_DIV, (left, right))


def divide_by(right: Node, left: Any) -> OperatorNode:
    return operator_node(SCALAR_DIV, (right,), (("number", _number("/", left)),))


def subtract_from(right: Node, left: Any) -> OperatorNode:
    return SubtractScalar(left, right)


def negative(x: Node) -> OperatorNode:
    return ProdScalar(x, -1)


for _name, _function in {
    "__add__": add,
    "__radd__": add,
    "__sub__": subtract,
    "__rsub__": subtract_from,
    "__mul__": multiply,
    "__rmul__": multiply,
    "__truediv__": divide,
    "__rtruediv__": divide_by,
    "__neg__": negative,
}.items():
    setattr(Node, _name, _function)
