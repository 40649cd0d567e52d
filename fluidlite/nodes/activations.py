"""Elementwise nodes of one input, and Softmax, LayerNorm and Dropout."""

from __future__ import annotations

from fluidlite import graph as ng
from fluidlite.base.errors import AttributeValueError
from fluidlite.graph.value import Value, emit
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import Kind
from fluidlite.nodes.operator_node import OperatorNode, operator_node, unary


def _axis(x: Value, axis: int) -> int:
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise AttributeValueError(f"axis is {axis}; {list(x.shape)} has axes {-rank} to {rank - 1}")
    return axis % rank


def _dropout(x: Value, probability: float, seed: int) -> Value:
    attrs = {
        "dropout_prob": probability,
        "dropout_implementation": "upscale_in_train",
        "fix_seed": seed != 0,
        "seed": seed,
    }
    return emit("dropout", {"X": x}, attrs)


TANH = Kind("Tanh", ng.tanh, (0,))
SIGMOID = Kind("Sigmoid", ng.sigmoid, (0,))
RELU = Kind("Relu", ng.relu, (0,))
GELU = Kind("Gelu", lambda x, **attrs: emit("gelu", {"X": x}, attrs), (0,))
SOFTMAX = Kind("Softmax", lambda x, axis: emit("softmax", {"X": x}, {"axis": _axis(x, axis)}), (0,))
LAYER_NORM = Kind("LayerNorm", lambda x, axis, **attrs: emit("mvn", {"X": x}, {"axis": _axis(x, axis), **attrs}), (0,))
DROPOUT = Kind("Dropout", _dropout, (0,), random=True)


Identity = unary(Kind("Identity", lambda x: emit("assign", {"X": x}), (0,)), "``x``, copied.")
Tanh = unary(TANH, "The hyperbolic tangent.")
Sigmoid = unary(SIGMOID, "``1 / (1 + exp(-x))``.")
InPlaceSigmoid = unary(SIGMOID, "``Sigmoid(x)``, written over ``x``.", inplace=True)
InPlaceTanh = unary(TANH, "``Tanh(x)``, written over ``x``.", inplace=True)
Relu = unary(RELU, "``max(x, 0)``.")
InPlaceRelu = unary(RELU, "``Relu(x)``, written over ``x``.", inplace=True)


def Gelu(x: Node, approximate: bool = False) -> OperatorNode:
    """``x`` times the normal distribution function of ``x``; ``approximate``: by a hyperbolic tangent."""
    return operator_node(GELU, (x,), (("approximate", bool(approximate)),))


Log = unary(Kind("Log", ng.log, (0,)), "The natural logarithm.")
Exp = unary(Kind("Exp", ng.exp, (0,)), "The exponential.")
Sqrt = unary(Kind("Sqrt", ng.sqrt, (0,)), "The square root.")
Square = unary(Kind("Square", ng.square, (0,)), "``x * x``.")


def Softmax(x: Node, axis: int = 0) -> OperatorNode:
    """Exponentials along an axis that sum to 1; by default, of each column."""
    return operator_node(SOFTMAX, (x,), (("axis", axis),))


def LayerNorm(x: Node, axis: int = 0, epsilon: float = 1e-5) -> OperatorNode:
    """``x`` with mean 0 and variance 1 along an axis; by default, of each column.

    ``epsilon`` is added to the variance. Scale and shift are separate nodes.
    """
    return operator_node(LAYER_NORM, (x,), (("axis", axis), ("epsilon", float(epsilon))))


def InPlaceLayerNorm(x: Node, axis: int = 0, epsilon: float = 1e-5) -> OperatorNode:
    """``LayerNorm(x)``, written over ``x``."""
    return operator_node(LAYER_NORM, (x,), (("axis", axis), ("epsilon", float(epsilon))), True)


def Dropout(x: Node, probability: float, seed: int = 0) -> OperatorNode:
    """``x`` with each element 0 at a probability, else divided by 1 - probability; redrawn at each forward.

    Parameters
    ----------
    seed : int
        Not 0: the same elements at each forward.
    """
    return operator_node(DROPOUT, (x,), (("probability", float(probability)), ("seed", seed)))


def InPlaceDropout(x: Node, probability: float, seed: int = 0) -> OperatorNode:
    """``Dropout(x, probability)``, written over ``x``."""
    return operator_node(DROPOUT, (x,), (("probability", float(probability)), ("seed", seed)), True)
