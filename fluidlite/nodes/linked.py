"""Linked graphs: the routines of a graph's nodes, at the addresses of this graph, done in one native call.

A graph of a structure that was not seen before has no compiled programs. Where the place can link, its kernels need not
be started one by one for that: each routine was linked once (:mod:`fluidlite.nodes.image`), and a graph says where
things lie: values, and then gradients, in one piece of memory of each device. Tensors are made of them when somebody
asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite.compiler.instrumentation import observed
from fluidlite.memory.allocation import Allocation
from fluidlite.nodes.device_nodes import DeviceView
from fluidlite.nodes.devices import Device
from fluidlite.nodes.lent import part_of
from fluidlite.nodes.linked_backward import Backward
from fluidlite.nodes.node import Node
from fluidlite.nodes.operator_node import OperatorNode
from fluidlite.nodes.regions import OFFSET, SCRATCH, Regions
from fluidlite.nodes.stream import Both, Stream, address_of, ask_for_images, images_of, may_link
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.kernel_language import REGION_BIT
from fluidlite.tensor.tensor_spec import Spec


class Linked:
    """What of a graph that ran linked lies where. It knows nodes by their positions only.

    ``address``: of each value: an offset in a region, or of a leaf, an address.
    ``images``: of each node; None of leaves and views.
    ``input_addresses``: where the inputs of each node lie.
    ``kept``: where lies what is kept of a node for its gradient.
    ``homes``: in whose gradient that of a node is gathered: of tied leaves, the first; of a view, its input's.
    ``devs``: where gradients lie; empty if that is one device.
    ``memory``: of each region.
    """

    __slots__ = (
        "_context",
        "_dev",
        "address",
        "devs",
        "homes",
        "images",
        "input_addresses",
        "kept",
        "memory",
        "specs",
    )

    def __init__(self, dev: Device, context: Context) -> None:
        self._dev = dev
        self._context = context
        self.specs: list[Spec] = []
        self.address: list[int] = []
        self.images: list[Both | None] = []
        self.input_addresses: list[Sequence[int]] = []
        self.kept: dict[int, list[int]] = {}
        self.homes: dict[int, int] = {}
        self.devs: list[Device] = []
        self.memory: list[Allocation | None] = []

    def _tensor(self, dev: Device, spec: Spec, address: int) -> Tensor:
        return _part(dev, spec, self.memory[address >> REGION_BIT], address)

    def dev_of(self, at: int) -> Device:
        """Where value and gradient of a node lie."""
        return self.devs[at] if self.devs else self._dev

    def value(self, at: int) -> Tensor:
        return self._tensor(self.dev_of(at), self.specs[at], self.address[at])

    def holds(self, nodes: Sequence[Node], context: Context) -> bool:
        """Whether the nodes' values are those that it has computed on a context, and leaves are what they were."""
        if self._context is not context or observed():
            return False
        for whole in self.memory:
            if whole is not None and whole.block is None:  # taken back
                return False
        for at, node in enumerate(nodes):
            held = node._at
            if type(node) is OperatorNode:
                if held._source is not self or held._number != at or not node._forwarded:
                    return False
            elif node.leaf:
                value = held._tensor
                if value is None or value.spec is not self.specs[at]:
                    return False
                if address_of(value, context) != self.address[at]:
                    return False
            elif not node._forwarded:  # a view is as its input is
                return False
        return True

    # Forward

    @staticmethod
    def forward(nodes: Sequence[Node], context: Context) -> Linked | None:
        """Compute a graph, where its queue is held; None: it cannot be linked, and nothing was done."""
        if not may_link(nodes, context):
            return None
        sink = nodes[-1]._dev
        made, stream, regions = Linked(sink, context), Stream(), Regions(context)
        region = regions.of(sink)
        if region is None:
            return None
        dev, cursor, sizes, counted = sink, region.cursor, region.sizes, region.counted  # where results are put
        words, address, specs, given, images = stream.words, made.address, made.specs, made.input_addresses, made.images
        leaves: dict[tuple[int, int], int] = {}  # in whose memory a value lies, or what is kept of a node
        ties: dict[int, int] = {}
        several = False
        launches = 0
        for at, node in enumerate(nodes):
            if type(node) is not OperatorNode:
                if not (made._note_leaf(node, at, ties) if node.leaf else made._note_view(node, at, nodes, leaves)):
                    return None
                several = several or node._at._dev is not sink
                continue
            program = node._program
            if program is None or node._forwarded or node._inplace >= 0:
                return None
            both = program.images.get(context) or images_of(program, context)
            if both is None:
                ask_for_images(nodes[at:], context)
                return None
            if node._dev is not dev:
                region.cursor, region, several = cursor, regions.of(node._dev), True
                if region is None:
                    return None
                dev, cursor, sizes, counted = region.dev, region.cursor, region.sizes, region.counted
            mine = []
            for item, spec in zip(node._inputs, program.ins):  # noqa: B905  # a third of the time
                position = item._position
                if specs[position] is not spec:  # dims have changed since the node was made
                    return None
                mine.append(address[position])
            given.append(mine)
            specs.append(program.spec)
            images.append(both)
            image = both[0]
            brief = image.brief
            if brief is not None:
                which, room, nbytes, count = brief
                words += (which, cursor, *mine)
                address.append(cursor)
                cursor += room
                launches += count
                if counted:
                    sizes.append(nbytes)
                continue
            launches += image.launches
            lies = []
            for room in image.rooms:
                lies.append(cursor)
                cursor += room
            if counted:
                sizes += image.sizes
            words += (image.address, *lies, *mine)
            if not image.plain:
                stream.note(image)
                words += (at, SCRATCH)
            for which, (source, own) in enumerate(image.outs):
                if source >= 0:
                    position = node._inputs[source]._position
                    if nodes[position].leaf or (position, 0) in leaves:
                        leaves[at, which] = leaves.get((position, 0), position)
                where = lies[own] if source < 0 else mine[source]
                if which:
                    made.kept.setdefault(at, []).append(where)
                else:
                    address.append(where)
        region.cursor, stream.launches = cursor, launches
        if not regions.take(stream.scratch):
            return None
        if several:
            made.devs = [node._at._dev for node in nodes]
        made.memory = regions.memory
        stream.run(context, regions)
        made._hand_over(nodes, leaves)
        return made

    def _note(self, address: int, spec: Spec) -> None:
        """Note a value that nothing computes."""
        self.address.append(address)
        self.specs.append(spec)
        self.input_addresses.append(())
        self.images.append(None)

    def _note_leaf(self, node: Node, at: int, ties: dict[int, int]) -> bool:
        """Note where the value of a leaf lies; False: it cannot be read there."""
        held = node._at
        value = held._tensor
        lies = address_of(value, self._context)
        if value is None or not lies or value.spec is None:
            return False
        self._note(lies, value.spec)
        first = ties.setdefault(id(held), at)
        if first != at:
            self.homes[at] = first
        return True

    def _note_view(self, node: Node, at: int, nodes: Sequence[Node], leaves: dict[tuple[int, int], int]) -> bool:
        """Note that the value of a view is its input's; False: it is no view."""
        if type(node) is not DeviceView:
            return False
        position = node._inputs[0]._position
        self._note(self.address[position], self.specs[position])
        self.homes[at] = self.homes.get(position, position)
        if nodes[position].leaf or (position, 0) in leaves:
            leaves[at, 0] = leaves.get((position, 0), position)
        return True

    def _hand_over(self, nodes: Sequence[Node], leaves: Mapping[tuple[int, int], int]) -> None:
        for at, node in enumerate(nodes):
            if type(node) is not OperatorNode:
                if not node.leaf:  # a view
                    node._forwarded, node._over = True, None
                continue
            node._forwarded = True
            node._over = None
            held = node._at
            if held._graded is not None:
                held._grad = held._grad  # of another graph: it is numbered anew
            held._tensor, held._source, held._number = None, self, at
        for at, addresses in self.kept.items():
            node = nodes[at]
            assert type(node) is OperatorNode and node._program is not None
            saved = []
            for which, (spec, address) in enumerate(zip(node._program.forward.specs[1:], addresses, strict=True), 1):
                leaf = leaves.get((at, which))
                saved.append(
                    self._tensor(node._dev, spec, address) if leaf is None else _view(nodes[leaf], node._dev, spec)
                )
            node._saved = tuple(saved)
        for (at, which), leaf in leaves.items():
            node = nodes[at]
            if not which and not node.shares_value:
                node._at._tensor = _view(nodes[leaf], node._dev, self.specs[at])

    # Backward

    def backward(self, nodes: Sequence[Node], context: Context, coefficient: float) -> bool:
        """Compute all gradients, and add those of leaves to what they have; False: they cannot be linked."""
        work = Backward(self, nodes, context)
        if not work.run(coefficient):
            return False
        memory, devs = work.regions.memory, self.devs
        sources: dict[Any, Gradients] = {}
        for at, (node, address) in enumerate(zip(nodes, work.gradients, strict=True)):
            held = node._at
            if type(node) is OperatorNode:
                held._gradient = held._graded = None
                held._parts = ()
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
                held._graded = source
            elif at not in work.passed and held._gradient is None and held._graded is None:
                held._graded, held._number = source, at
            else:
                tensor = source.gradient(at)
                held.add_part(tensor.copy_to(tensor.dev) if at in work.passed else tensor)
                held.add_up()
        return True


class Gradients:
    """Gradients of a run that lie in one region: who has one keeps no other memory, and no other device."""

    __slots__ = ("_address", "_dev", "_specs", "_whole")

    def __init__(self, linked: Linked, dev: Device, address: list[int], whole: Allocation | None) -> None:
        self._dev, self._specs = dev, linked.specs
        self._address = address
        self._whole = whole

    def gradient(self, at: int) -> Tensor:
        return _part(self._dev, self._specs[at], self._whole, self._address[at])


def _part(dev: Device, spec: Spec, whole: Allocation | None, address: int) -> Tensor:
    assert whole is not None
    made = Tensor.on(dev, spec)
    made.allocation = part_of(whole, address & OFFSET, spec.nbytes)
    return made


def _view(leaf: Node, dev: Device, spec: Spec) -> Tensor:
    """A leaf's memory, which is plain, under other metadata."""
    value = leaf.value()
    made = Tensor.on(dev, spec)
    made.allocation, made._byte_offset = value.allocation, value._byte_offset
    return made
