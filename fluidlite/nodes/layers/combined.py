"""Stacked: layers in sequence; Joined: layers on the same input."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import NodeError
from fluidlite.nodes.layers.base import Layer
from fluidlite.nodes.node import Node
from fluidlite.nodes.shaping import Cat


def _flat_layers(function: str, layers: tuple[Any, ...], kind: type[Layer]) -> list[Layer]:
    flat: list[Layer] = []
    for layer in layers:
        if not isinstance(layer, Layer):
            raise NodeError(f"{function} takes layers; one is {layer!r:.80}")
        flat += layer.parts if type(layer) is kind else [layer]  # type: ignore[attr-defined]
    if not flat:
        raise NodeError(f"{function} has no layers; expected one or more")
    return flat


class Stacked(Layer):
    """Layers in sequence, each on the result of the previous one: ``a | b | c``.

    Attributes
    ----------
    parts : list of Layer
    """

    def __init__(self, *layers: Layer) -> None:
        self.parts = _flat_layers("Stacked", layers, Stacked)

    def run(self, *args: Any, **options: Any) -> Any:
        """Run the first layer on the arguments, each other one on the result of the previous one."""
        value = self.parts[0](*args, **options)
        for layer in self.parts[1:]:
            value = layer(value)
        return value


class Joined(Layer):
    """Layers that run on the same input, with their results concatenated along the first axis: ``a & b``.

    Attributes
    ----------
    parts : list of Layer
    """

    def __init__(self, *layers: Layer) -> None:
        self.parts = _flat_layers("Joined", layers, Joined)

    def run(self, *args: Any, **options: Any) -> Any:
        """Run each layer on the arguments; lists of nodes, such as sequences, are joined node by node."""
        values = [layer(*args, **options) for layer in self.parts]
        if all(isinstance(value, Node) for value in values):
            return Cat(*values)
        if all(isinstance(value, list) for value in values) and len({len(value) for value in values}) == 1:
            return [Cat(*each) for each in zip(*values, strict=True)]
        type_names = ", ".join(type(value).__name__ for value in values)
        raise NodeError(f"Joined: its layers gave {type_names}; expected nodes, or lists of as many nodes")
