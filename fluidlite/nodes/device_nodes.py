"""DeviceView, which aliases a value on another device of the same memory, and DeviceTransfer, which copies it."""

from __future__ import annotations

from fluidlite.base.errors import NodeError
from fluidlite.nodes.devices import Device, as_device
from fluidlite.nodes.node import Node, ValueStorage
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.place import PlaceLike
from fluidlite.tensor.tensor_spec import Spec


class DeviceView(Node):
    """An alias of a node's value and gradient on another device of the same memory; nothing is copied.

    Nodes computed from it are on that device, so their memory may be temporary where the node's own is not.

    Parameters
    ----------
    node : Node
    dev : Device or Place or str
        In the same memory as the node's device.

    Raises
    ------
    NodeError
        If the device has other memory; :class:`DeviceTransfer` copies.
    """

    shares_value = True
    reads_input = False
    reads_output = False

    def __init__(self, node: Node, dev: Device | PlaceLike) -> None:
        super().__init__((node,), dev)
        self._check(node.dev())

    @property
    def _at(self) -> ValueStorage:  # of the node, whose storage in-place writing replaces
        return self._inputs[0]._at

    @_at.setter
    def _at(self, storage: ValueStorage) -> None:
        """Nothing: it has no storage of its own."""

    def _check(self, value_device: Device) -> None:
        if not self._dev.same_memory(value_device):
            raise NodeError(
                f"{self}: its input {self._inputs[0]} lies on {value_device}; expected in the memory of {self._dev}"
                f"\n  Do: DeviceTransfer(node, {self._dev}) copies the value there, and the gradient back"
            )

    def value(self) -> Tensor:
        """The node's own value.

        Raises
        ------
        NodeError
            Before ``forward``, or if the node was moved to other memory since.
        """
        tensor = super().value()
        self._check(tensor.dev)
        return tensor

    def _spec(self) -> Spec | None:
        return self._inputs[0]._spec()

    def forward_(self) -> None:
        """Nothing: the value is the node's."""

    def backward_(self) -> None:
        """Nothing: the gradient is the node's."""


class DeviceTransfer(Node):
    """A copy of a node's value on another device; the gradient is copied back.

    Parameters
    ----------
    node : Node
    dev : Device or Place or str
    """

    reads_input = False
    reads_output = False

    def __init__(self, node: Node, dev: Device | PlaceLike) -> None:
        target = as_device(dev)
        target.known_place()
        super().__init__((node,), target)

    def forward_(self) -> None:
        self.set_value(self._inputs[0].value().copy_to(self._dev))

    def backward_(self) -> None:
        node = self._inputs[0]
        if node.has_grad():
            node.add_grad(self.grad().copy_to(node._at.dev()))

    def _spec(self) -> Spec | None:
        return self._inputs[0]._spec()
