"""Affine: a matrix, a bias and an activation."""

from __future__ import annotations

from typing import Any

from fluidlite.nodes import linear
from fluidlite.nodes.devices import Device
from fluidlite.nodes.initialisers import Xavier
from fluidlite.nodes.layers.base import Activation, Layer, check_rows, check_sizes
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.node import Node
from fluidlite.platform.place import PlaceLike


class Affine(Layer):
    """``activation(W x + b)`` of columns [inputs] or [inputs, batch...].

    Parameters
    ----------
    dev : Device or Place or str
        Of the weights.
    inputs, outputs : int
    activation : callable, optional
        Such as ``Tanh``: a node of a node.
    bias : bool
    init : callable, optional
        Of the matrix; default: :class:`~fluidlite.nodes.initialisers.Xavier`. The bias begins with zeros.
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
