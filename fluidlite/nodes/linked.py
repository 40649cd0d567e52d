"""Linked graphs: one native call runs the linked routines of a graph's nodes at the addresses of this graph.

A graph of a new structure has no compiled programs. Where the place can link, its kernels are still not launched one by
one: each routine was linked once (:mod:`fluidlite.nodes.image`), and a graph provides the addresses of its values, then
of its gradients, in one allocation for each device. Tensors are created on demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite.compiler.instrumentation import is_observed
from fluidlite.memory.allocation import Allocation
from fluidlite.nodes.device_nodes import DeviceView
from fluidlite.nodes.devices import Device
from fluidlite.nodes.lent import part_of
from fluidlite.nodes.linked_backward import LinkedBackward
from fluidlite.nodes.node import Node
from fluidlite.nodes.operator_node import OperatorNode
from fluidlite.nodes.regions import OFFSET_MASK, SCRATCH, Regions
from fluidlite.nodes.stream import ImageStream, NodeImages, address_of, can_link, count_image_uses, node_images
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.kernel_language import REGION_BIT
from fluidlite.tensor.tensor_spec import Spec


class LinkedGraph:
    """The addresses of a graph that ran linked. It refers to nodes by their positions only.

    ``address``: of each value: an offset in a region; of a leaf, a machine address.
    ``images``: of each node; None for leaves and views.
    ``input_addresses``: the addresses of the inputs of each node.
    ``saved``: for each node, the addresses of the values saved for its gradient.
    ``owners``: the node that accumulates a node's gradient: of tied leaves, the first; of a view, its input.
    ``devs``: the device of each gradient; empty if there is one device.
    ``memory``: the allocation of each region.
    """

    __slots__ = (
        "_context",
        "_dev",
        "address",
        "devs",
        "images",
        "input_addresses",
        "memory",
        "owners",
        "saved",
        "specs",
    )

    def __init__(self, dev: Device, context: Context) -> None:
        self._dev = dev
        self._context = context
        self.specs: list[Spec] = []
        self.address: list[int] = []
        self.images: list[NodeImages | None] = []
        self.input_addresses: list[Sequence[int]] = []
        self.saved: dict[int, list[int]] = {}
        self.owners: dict[int, int] = {}
        self.devs: list[Device] = []
        self.memory: list[Allocation | None] = []

    def _tensor(self, dev: Device, spec: Spec, address: int) -> Tensor:
        return _part_tensor(dev, spec, self.memory[address >> REGION_BIT], address)

    def dev_of(self, at: int) -> Device:
        """The device of a node's value and gradient."""
        return self.devs[at] if self.devs else self._dev

    def value(self, at: int) -> Tensor:
        return self._tensor(self.dev_of(at), self.specs[at], self.address[at])

    def owns_values(self, nodes: Sequence[Node], context: Context) -> bool:
        """Whether the nodes' values are those computed here on this context, and the leaves are unchanged."""
        if self._context is not context or is_observed():
            return False
        for allocation in self.memory:
            if allocation is not None and allocation.block is None:  # freed
                return False
        for at, node in enumerate(nodes):
            storage = node._at
            if type(node) is OperatorNode:
                if storage._source is not self or storage._number != at or not node._forwarded:
                    return False
            elif node.leaf:
                value = storage._tensor
                if value is None or value.spec is not self.specs[at]:
                    return False
                if address_of(value, context) != self.address[at]:
                    return False
            elif not node._forwarded:  # a view has its input's state
                return False
        return True

    # Forward

    @staticmethod
    def forward(nodes: Sequence[Node], context: Context) -> LinkedGraph | None:
        """Compute a graph while its queue is locked. Returns None, without effect, if the graph cannot be linked."""
        if not can_link(nodes, context):
            return None
        sink_dev = nodes[-1]._dev
        linked, stream, regions = LinkedGraph(sink_dev, context), ImageStream(), Regions(context)
        region = regions.of(sink_dev)
        if region is None:
            return None
        dev, cursor, sizes, counted = sink_dev, region.cursor, region.sizes, region.counted  # of the next result
        words, address, specs, images = stream.words, linked.address, linked.specs, linked.images
        node_inputs = linked.input_addresses
        alias_of: dict[tuple[int, int], int] = {}  # the leaf that a value, or a saved value, aliases
        ties: dict[int, int] = {}
        is_mixed = False  # whether nodes are on several devices
        launches = 0
        for at, node in enumerate(nodes):
            if type(node) is not OperatorNode:
                if not (linked._add_leaf(node, at, ties) if node.leaf else linked._add_view(node, at, nodes, alias_of)):
                    return None
                is_mixed = is_mixed or node._at._dev is not sink_dev
                continue
            program = node._program
            if program is None or node._forwarded or node._inplace >= 0:
                return None
            image_pair = program.images.get(context) or node_images(program, context)
            if image_pair is None:
                count_image_uses(nodes[at:], context)
                return None
            if node._dev is not dev:
                region.cursor, region, is_mixed = cursor, regions.of(node._dev), True
                if region is None:
                    return None
                dev, cursor, sizes, counted = region.dev, region.cursor, region.sizes, region.counted
            addresses = []
            for item, spec in zip(node._inputs, program.ins):  # noqa: B905  # strict costs time in this loop
                position = item._position
                if specs[position] is not spec:  # dims have changed since the node was made
                    return None
                addresses.append(address[position])
            node_inputs.append(addresses)
            specs.append(program.spec)
            images.append(image_pair)
            image = image_pair[0]
            fast_words = image.fast_words
            if fast_words is not None:
                number, aligned_bytes, nbytes, count = fast_words
                words += (number, cursor, *addresses)
                address.append(cursor)
                cursor += aligned_bytes
                launches += count
                if counted:
                    sizes.append(nbytes)
                continue
            launches += image.launches
            result_addresses = []
            for aligned_bytes in image.aligned_sizes:
                result_addresses.append(cursor)
                cursor += aligned_bytes
            if counted:
                sizes += image.sizes
            words += (image.address, *result_addresses, *addresses)
            if not image.is_plain:
                stream.add_requirements(image)
                words += (at, SCRATCH)
            for number, (source, result) in enumerate(image.outs):
                if source >= 0:
                    position = node._inputs[source]._position
                    if nodes[position].leaf or (position, 0) in alias_of:
                        alias_of[at, number] = alias_of.get((position, 0), position)
                fetch_address = result_addresses[result] if source < 0 else addresses[source]
                if number:
                    linked.saved.setdefault(at, []).append(fetch_address)
                else:
                    address.append(fetch_address)
        region.cursor, stream.launches = cursor, launches
        if not regions.allocate(stream.scratch):
            return None
        if is_mixed:
            linked.devs = [node._at._dev for node in nodes]
        linked.memory = regions.memory
        stream.run(context, regions)
        linked._update_nodes(nodes, alias_of)
        return linked

    def _add_value(self, address: int, spec: Spec) -> None:
        """Append a value that is not computed."""
        self.address.append(address)
        self.specs.append(spec)
        self.input_addresses.append(())
        self.images.append(None)

    def _add_leaf(self, node: Node, at: int, ties: dict[int, int]) -> bool:
        """Append the address of a leaf's value; False if native code cannot read it there."""
        storage = node._at
        value = storage._tensor
        leaf_address = address_of(value, self._context)
        if value is None or not leaf_address or value.spec is None:
            return False
        self._add_value(leaf_address, value.spec)
        first = ties.setdefault(id(storage), at)
        if first != at:
            self.owners[at] = first
        return True

    def _add_view(self, node: Node, at: int, nodes: Sequence[Node], alias_of: dict[tuple[int, int], int]) -> bool:
        """Append a view with its input's address; False if the node is no view."""
        if type(node) is not DeviceView:
            return False
        position = node._inputs[0]._position
        self._add_value(self.address[position], self.specs[position])
        self.owners[at] = self.owners.get(position, position)
        if nodes[position].leaf or (position, 0) in alias_of:
            alias_of[at, 0] = alias_of.get((position, 0), position)
        return True

    def _update_nodes(self, nodes: Sequence[Node], alias_of: Mapping[tuple[int, int], int]) -> None:
        for at, node in enumerate(nodes):
            if type(node) is not OperatorNode:
                if not node.leaf:  # a view
                    node._forwarded, node._overwriter = True, None
                continue
            node._forwarded = True
            node._overwriter = None
            storage = node._at
            if storage._grad_source is not None:
                storage._grad = storage._grad  # materialize the gradient of another graph before _number changes
            storage._tensor, storage._source, storage._number = None, self, at
        for at, addresses in self.saved.items():
            node = nodes[at]
            assert type(node) is OperatorNode and node._program is not None
            saved = []
            for number, (spec, address) in enumerate(zip(node._program.forward.specs[1:], addresses, strict=True), 1):
                leaf = alias_of.get((at, number))
                saved.append(
                    self._tensor(node._dev, spec, address) if leaf is None else _leaf_view(nodes[leaf], node._dev, spec)
                )
            node._saved = tuple(saved)
        for (at, number), leaf in alias_of.items():
            node = nodes[at]
            if not number and not node.shares_value:
                node._at._tensor = _leaf_view(nodes[leaf], node._dev, self.specs[at])

    # Backward

    def backward(self, nodes: Sequence[Node], context: Context, coefficient: float) -> bool:
        """Compute all gradients, and accumulate those of leaves; False if they cannot be linked."""
        work = LinkedBackward(self, nodes, context)
        if not work.run(coefficient):
            return False
        memory, devs = work.regions.memory, self.devs
        sources: dict[Any, Gradients] = {}
        for at, (node, address) in enumerate(zip(nodes, work.gradients, strict=True)):
            storage = node._at
            if type(node) is OperatorNode:
                storage._gradient = storage._grad_source = None
                storage._parts = ()
            elif not node.leaf:
                continue
            if not address:
                continue
            region = address >> REGION_BIT
            key = (region, devs[at]) if devs else region
            source = sources.get(key)
            if source is None:
                source = sources[key] = Gradients(self, self.dev_of(at), work.gradients, memory[region])
            if not node.leaf:
                storage._grad_source = source
            elif at not in work.aliased_leaves and storage._gradient is None and storage._grad_source is None:
                storage._grad_source, storage._number = source, at
            else:
                tensor = source.gradient(at)
                storage.add_part(tensor.copy_to(tensor.dev) if at in work.aliased_leaves else tensor)
                storage.add_up()
        return True


class Gradients:
    """Gradients of a run in one region; a reference to one keeps only this region's memory alive."""

    __slots__ = ("_address", "_allocation", "_dev", "_specs")

    def __init__(self, linked: LinkedGraph, dev: Device, address: list[int], allocation: Allocation | None) -> None:
        self._dev, self._specs = dev, linked.specs
        self._address = address
        self._allocation = allocation

    def gradient(self, at: int) -> Tensor:
        return _part_tensor(self._dev, self._specs[at], self._allocation, self._address[at])


def _part_tensor(dev: Device, spec: Spec, allocation: Allocation | None, address: int) -> Tensor:
    assert allocation is not None
    tensor = Tensor.on(dev, spec)
    tensor.allocation = part_of(allocation, address & OFFSET_MASK, spec.nbytes)
    return tensor


def _leaf_view(leaf: Node, dev: Device, spec: Spec) -> Tensor:
    """A view of a leaf's contiguous memory with other metadata."""
    value = leaf.value()
    view = Tensor.on(dev, spec)
    view.allocation, view._byte_offset = value.allocation, value._byte_offset
    return view
