"""Affine: a matrix, a bias and an activation; LayerNorm with scale and shift, and Dropout."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import NodeError
from fluidlite.graph.value import Value, emit
from fluidlite.nodes import activations, linear
from fluidlite.nodes.devices import Device
from fluidlite.nodes.initialisers import Xavier
from fluidlite.nodes.layers.base import Activation, Layer, check_rows, check_sizes
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.node import Node
from fluidlite.nodes.operator_node import node_function
from fluidlite.platform.place import PlaceLike


class Affine(Layer):
    """``activation(W x + b)`` of columns [inputs] or [inputs, batch...].

    Parameters
    ----------
    dev : Device or Place or str
        Of the weights.
    inputs, outputs : int
    activation : callable, optional
        Returns a node of a node, such as ``Tanh``.
    bias : bool
    init : callable, optional
        Of the matrix; default: :class:`~fluidlite.nodes.initialisers.Xavier`. The bias is initially 0.
    dtype : str
    """

    def __init__(
        self,
        dev: Device | PlaceLike,
        inputs: int,
        outputs: int,
        activation: Activation | None = None,
        *,
        bias: bool = True,
        init: Any = None,
        dtype: str = "float32",
    ) -> None:
        check_sizes("Affine", inputs=inputs, outputs=outputs)
        self.inputs, self.outputs, self.activation = inputs, outputs, activation
        self.w = Weight(dev, [outputs, inputs], init=Xavier() if init is None else init, dtype=dtype)
        self.b = Weight(dev, [outputs], dtype=dtype) if bias else None

    def run(self, x: Node) -> Node:
        """The node for columns [inputs] or [inputs, batch...]: [outputs] or [outputs, batch...]."""
        check_rows(self, x, self.inputs)
        value: Node = linear.Prod(self.w, x) if self.b is None else linear.Affine(self.w, x, self.b)
        return value if self.activation is None else self.activation(value)


def _scale_shift(x: Value, scale: Value, shift: Value) -> Value:
    product = emit("elementwise_mul", {"X": x, "Y": scale}, {"axis": 0})
    return emit("elementwise_add", {"X": product, "Y": shift}, {"axis": 0})


ScaleShift = node_function("ScaleShift", _scale_shift)


class LayerNorm(Layer):
    """Each column with mean 0 and variance 1 (Ba and others, 2016), times a scale, plus a shift, row by row.

    Parameters
    ----------
    dev : Device or Place or str
    rows : int
    epsilon : float
        Is added to the variance.
    dtype : str
    """

    def __init__(self, dev: Device | PlaceLike, rows: int, epsilon: float = 1e-5, *, dtype: str = "float32") -> None:
        check_sizes("LayerNorm", rows=rows)
        self.rows, self.epsilon = rows, epsilon
        self.scale = Weight(dev, [rows], dtype=dtype)
        self.scale.value().set_ones()
        self.shift = Weight(dev, [rows], dtype=dtype)

    def run(self, x: Node) -> Node:
        """The node for [rows] or [rows, batch...], of the same dims."""
        check_rows(self, x, self.rows)
        return ScaleShift(activations.LayerNorm(x, 0, self.epsilon), self.scale, self.shift)


class Dropout(Layer):
    """Elements that are 0 at a probability, in training; the others are divided by 1 - probability.

    Parameters
    ----------
    probability : float
        0 or more and below 1.
    """

    def __init__(self, probability: float) -> None:
        if isinstance(probability, bool) or not isinstance(probability, (int, float)) or not 0 <= probability < 1:
            raise NodeError(f"Dropout: the probability is {probability!r}; expected a number of 0 or more, below 1")
        self.probability = float(probability)

    def run(self, x: Node) -> Node:
        """A node of the same dims; ``x`` itself in inference mode."""
        return activations.Dropout(x, self.probability) if self.training and self.probability else x
