"""Nodes of one input that compute element by element, and along an axis."""

from __future__ import annotations

from typing import Any

from fluidlite import graph as ng
from fluidlite.base.errors import AttributeValueError
from fluidlite.graph.value import Value, emit
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import Kind
from fluidlite.nodes.operator_node import OperatorNode, operator_node


def _of(type: str) -> Any:
    def build(x: Value) -> Value:
        return emit(type, {"X": x})

    return build


def _gelu(x: Value, approximate: bool) -> Value:
    return emit("gelu", {"X": x}, {"approximate": approximate})


def _softmax(x: Value, axis: int) -> Value:
    return emit("softmax", {"X": x}, {"axis": _axis(x, axis)})


def _axis(x: Value, axis: int) -> int:
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise AttributeValueError(f"axis is {axis}; {list(x.shape)} has axes {-rank} to {rank - 1}")
    return axis % rank


def _layer_norm(x: Value, axis: int, epsilon: float) -> Value:
    return emit("mvn", {"X": x}, {"axis": _axis(x, axis), "epsilon": epsilon})


def _dropout(x: Value, probability: float, seed: int) -> Value:
    attrs = {
        "dropout_prob": probability,
        "dropout_implementation": "upscale_in_train",
        "fix_seed": seed != 0,
        "seed": seed,
    }
    return emit("dropout", {"X": x}, attrs)


IDENTITY = Kind("Identity", _of("assign"), (0,))
TANH = Kind("Tanh", ng.tanh, (0,))
SIGMOID = Kind("Sigmoid", ng.sigmoid, (0,))
RELU = Kind("Relu", ng.relu, (0,))
GELU = Kind("Gelu", _gelu, (0,))
LOG = Kind("Log", ng.log, (0,))
EXP = Kind("Exp", ng.exp, (0,))
SQRT = Kind("Sqrt", ng.sqrt, (0,))
SQUARE = Kind("Square", ng.square, (0,))
SOFTMAX = Kind("Softmax", _softmax, (0,))
LAYER_NORM = Kind("LayerNorm", _layer_norm, (0,))
DROPOUT = Kind("Dropout", _dropout, (0,), random=True)


def Identity(x: Node) -> OperatorNode:
    """``x``, copied."""
    return operator_node(IDENTITY, (x,))


def Tanh(x: Node) -> OperatorNode:
    """The hyperbolic tangent."""
    return operator_node(TANH, (x,))


def Sigmoid(x: Node) -> OperatorNode:
    """``1 / (1 + exp(-x))``."""
    return operator_node(SIGMOID, (x,))


def InPlaceSigmoid(x: Node) -> OperatorNode:
    """``Sigmoid(x)``, written over ``x``."""
    return operator_node(SIGMOID, (x,), (), True)


def InPlaceTanh(x: Node) -> OperatorNode:
    """``Tanh(x)``, written over ``x``."""
    return operator_node(TANH, (x,), (), True)


def Relu(x: Node) -> OperatorNode:
    """``max(x, 0)``."""
    return operator_node(RELU, (x,))


def InPlaceRelu(x: Node) -> OperatorNode:
    """``Relu(x)``, written over ``x``."""
    return operator_node(RELU, (x,), (), True)


def Gelu(x: Node, approximate: bool = False) -> OperatorNode:
    """``x`` times the normal distribution function of ``x``; ``approximate``: by a hyperbolic tangent."""
    return operator_node(GELU, (x,), (("approximate", bool(approximate)),))


def Log(x: Node) -> OperatorNode:
    """The natural logarithm."""
    return operator_node(LOG, (x,))


def Exp(x: Node) -> OperatorNode:
    """The exponential."""
    return operator_node(EXP, (x,))


def Sqrt(x: Node) -> OperatorNode:
    """The square root."""
    return operator_node(SQRT, (x,))


def Square(x: Node) -> OperatorNode:
    """``x * x``."""
    return operator_node(SQUARE, (x,))


def Softmax(x: Node, axis: int = 0) -> OperatorNode:
    """Exponentials along an axis that sum to 1; by default, of each column."""
    return operator_node(SOFTMAX, (x,), (("axis", axis),))


def LayerNorm(x: Node, axis: int = 0, epsilon: float = 1e-5) -> OperatorNode:
    """``x`` with mean 0 and variance 1 along an axis; by default, of each column.

    ``epsilon`` is added to the variance. Scale and shift are nodes of their own.
    """
    return operator_node(LAYER_NORM, (x,), (("axis", axis), ("epsilon", float(epsilon))))


def InPlaceLayerNorm(x: Node, axis: int = 0, epsilon: float = 1e-5) -> OperatorNode:
    """``LayerNorm(x)``, written over ``x``."""
    return operator_node(LAYER_NORM, (x,), (("axis", axis), ("epsilon", float(epsilon))), True)


def Dropout(x: Node, probability: float, seed: int = 0) -> OperatorNode:
    """``x`` with each element 0 at a probability, and divided by 1 - probability else; drawn anew at each forward.

    Parameters
    ----------
    seed : int
        Other than 0: the same elements at every forward.
    """
    return operator_node(DROPOUT, (x,), (("probability", float(probability)), ("seed", seed)))


def InPlaceDropout(x: Node, probability: float, seed: int = 0) -> OperatorNode:
    """``Dropout(x, probability)``, written over ``x``."""
    return operator_node(DROPOUT, (x,), (("probability", float(probability)), ("seed", seed)), True)
