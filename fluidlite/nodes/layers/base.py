"""Layer: the base class of layers, which have weights and make nodes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from fluidlite.base.errors import NodeError
from fluidlite.nodes.devices import Device
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.node import Node
from fluidlite.platform.place import PlaceLike
from fluidlite.tensor.tensor_spec import Dims

if TYPE_CHECKING:
    from fluidlite.nodes.layers.combined import Joined, Stacked

L = TypeVar("L", bound="Layer")
Activation = Callable[[Node], Node]


class Layer:
    """Base class of layers and models: its weights are those in its attributes, also in layers, lists and dicts.

    A subclass makes its weights in ``__init__`` and its nodes in :meth:`run`. ``a | b`` runs ``b`` on the result of
    ``a``; ``a & b`` runs both on the same input and concatenates their results along the first axis.

    Attributes
    ----------
    training : bool
        Whether layers such as Dropout are in training mode; see :meth:`train`.
    """

    training = True

    def run(self, *args: Any, **options: Any) -> Any:
        """Make the nodes of one application of the layer."""
        raise NotImplementedError(f"{type(self).__name__} must define run")

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Make the nodes of one application of the layer."""
        return self.run(*args, **options)

    def weights(self) -> list[Weight]:
        """The distinct weights; of tied ones, the first."""
        distinct: dict[int, Weight] = {}
        for item in _parts(vars(self)):
            item_weights = [item] if isinstance(item, Weight) else item.weights()
            for weight in item_weights:
                distinct.setdefault(weight.identity, weight)
        return list(distinct.values())

    def layers(self) -> list[Layer]:
        """The layers among its attributes."""
        return [item for item in _parts(vars(self)) if isinstance(item, Layer)]

    def init(self: L, initialiser: Callable[[Any], None]) -> L:
        """Set the value of each weight by an initialiser."""
        for weight in self.weights():
            initialiser(weight.value())
        return self

    def move_to(self: L, dev: Device | PlaceLike) -> L:
        """Move all weights, with their gradients, to a device."""
        for weight in self.weights():
            weight.move_to(dev)
        return self

    def train(self: L, mode: bool = True) -> L:
        """Set training or inference mode, for this layer and those in it."""
        self.training = mode
        for layer in self.layers():
            layer.train(mode)
        return self

    def eval(self: L) -> L:
        """``train(False)``."""
        return self.train(False)

    def copy(self: L) -> L:
        """An independent layer with copied weights; weights tied in this one are tied in the copy."""
        return copy.deepcopy(self)

    def tied(self: L) -> L:
        """A layer that shares all weights with this one."""
        layer: L = copy.copy(self)
        for name, item in vars(self).items():
            setattr(layer, name, _tie_item(item))
        return layer

    def __or__(self, other: Layer) -> Stacked:
        from fluidlite.nodes.layers.combined import Stacked

        return Stacked(self, other)

    def __and__(self, other: Layer) -> Joined:
        from fluidlite.nodes.layers.combined import Joined

        return Joined(self, other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.weights())} weights)"


def _parts(items: Any) -> Iterator[Any]:
    for item in items.values() if isinstance(items, dict) else items:
        if isinstance(item, (Weight, Layer)):
            yield item
        elif isinstance(item, (list, tuple, dict)):
            yield from _parts(item)


def _tie_item(item: Any) -> Any:
    if isinstance(item, (Weight, Layer)):
        return item.tied()
    if isinstance(item, dict):
        return {key: _tie_item(each) for key, each in item.items()}
    if isinstance(item, (list, tuple)):
        return type(item)([_tie_item(each) for each in item])
    return item


def dims_of(layer: Layer, node: Any) -> Dims:
    """The dims of a layer's input.

    Raises NodeError if it is no node, or its dims are unknown until it is computed.
    """
    if not isinstance(node, Node):
        raise NodeError(f"{type(layer).__name__} takes a node, got {node!r:.80}")
    spec = node._spec()
    if spec is None:
        raise NodeError(f"{type(layer).__name__}: the dims of {node} are not known yet\n  Do: node.forward() first")
    return spec.dims


def check_rows(layer: Layer, node: Any, rows: int) -> Dims:
    """The dims of a layer's input; raises NodeError unless they are [rows] or [rows, batch...]."""
    dims = dims_of(layer, node)
    if not dims or dims[0] != rows:
        raise NodeError(
            f"{type(layer).__name__}: its input {node} has dims {list(dims)}; expected [{rows}] or [{rows}, ...]"
        )
    return dims


def check_sizes(layer: str, **sizes: Any) -> None:
    """Raise NodeError unless all are ints above 0."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise NodeError(f"{layer}: {name} is {size!r}; expected an int above 0")
