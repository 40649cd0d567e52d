"""LinkedBackward: the gradients of a linked graph, as one stream of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.lru_cache import LRUCache
from fluidlite.nodes.node import MAX_PARTS, Node
from fluidlite.nodes.operator_call import sum_of
from fluidlite.nodes.regions import SCRATCH, Region, Regions
from fluidlite.nodes.routine import Routine
from fluidlite.nodes.stream import ImageStream
from fluidlite.platform.context import Context
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nodes.linked import LinkedGraph

MAX_STARTS = 64  # entries of the cache of start gradients
_starts: LRUCache[tuple[Any, int]] = LRUCache(MAX_STARTS, "gradients to begin with", 1 << 20)


def _start_gradient(spec: Spec, coefficient: float) -> tuple[Any, int]:
    """The read-only gradient of the sink, and its address."""

    def make() -> tuple[Any, int]:
        array = np.full(spec.dims, coefficient, NUMPY[spec.dtype])
        return array, array.ctypes.data

    return _starts.get((spec, coefficient), make)


class LinkedBackward:
    """The gradients of a graph, in the order in which they are computed.

    ``gradients``: the address of each node's gradient; 0: it has none.
    ``aliased_leaves``: leaves whose gradient aliases that of another node.
    """

    __slots__ = ("_context", "_linked", "_nodes", "_partials", "_stream", "aliased_leaves", "gradients", "regions")

    def __init__(self, linked: LinkedGraph, nodes: Sequence[Node], context: Context) -> None:
        self._linked, self._nodes, self._context = linked, nodes, context
        self._stream = ImageStream()
        self._partials: dict[int, list[int]] = {}
        """For nodes with several partial gradients, the addresses of these."""
        self.gradients = [0] * len(nodes)
        self.aliased_leaves: set[int] = set()
        self.regions = Regions(context, linked.memory)

    def run(self, coefficient: float) -> bool:
        """Compute all gradients; False, without effect, if one of them cannot be linked."""
        linked, last = self._linked, len(self._nodes) - 1
        owner = linked.owners.get(last, last)
        spec = linked.specs[-1]
        region = self._region(owner)
        if region is None:
            return False
        start = self.gradients[owner] = region.reserve(spec.nbytes, self.regions.alignment)
        if not self._link(region) or not self.regions.allocate(self._stream.scratch):
            return False
        start_array, source = _start_gradient(spec, coefficient)
        self._stream.run(self._context, self.regions, (start, source, spec.nbytes))
        del start_array
        return True

    def _region(self, at: int) -> Region | None:
        """The region of a node's gradient."""
        linked = self._linked
        return self.regions.of(linked.devs[at] if linked.devs else self._nodes[at]._at._dev)

    def _link(self, start_region: Region) -> bool:
        """Build the stream; False if a gradient cannot be linked."""
        nodes, linked, stream = self._nodes, self._linked, self._stream
        gradients, partials = self.gradients, self._partials
        address, input_addresses, saved = linked.address, linked.input_addresses, linked.saved
        owners, devs, images, words = linked.owners, linked.devs, linked.images, stream.words
        region = start_region
        at, launches = len(nodes), 0
        for node in reversed(nodes):
            at -= 1
            gradient = gradients[at]
            if not gradient:
                continue
            if at in partials:
                if not self._sum_parts(at):
                    return False
                gradient = gradients[at]
            image_pair = images[at]
            if image_pair is None:
                continue
            image = image_pair[1]
            if image is None:
                continue
            program, inputs = node._program, node._inputs  # type: ignore[attr-defined]
            addresses = program.pick(
                [*input_addresses[at], address[at], *(saved.get(at, ()) if saved else ()), gradient]
            )
            if image.fast_words is not None and not devs:  # the common case
                word, aligned_bytes, size, count = image.fast_words
                part = region.cursor
                words += (word, part, *addresses)
                region.cursor = part + aligned_bytes
                launches += count
                if region.counted:
                    region.sizes.append(size)
                target_node = inputs[program.targets[0]]._position
                if owners:
                    target_node = owners.get(target_node, target_node)
                if not gradients[target_node]:
                    gradients[target_node] = part
                elif not self._append_part(target_node, part):
                    return False
                continue
            launches += image.launches
            result_addresses = []
            for fetch, aligned_bytes, size in zip(image.fetches, image.aligned_sizes, image.sizes):  # noqa: B905
                if devs:
                    dev = devs[inputs[program.targets[fetch]]._position]
                    if dev is not region.dev:
                        new_region = self.regions.of(dev)
                        if new_region is None:
                            return False
                        region = new_region
                result_addresses.append(region.cursor)
                region.cursor += aligned_bytes
                if region.counted:
                    region.sizes.append(size)
            words += (image.address, *result_addresses, *addresses)
            if not image.is_plain:
                stream.add_requirements(image)
                words += (at, SCRATCH)
            for (source, result), target in zip(image.outs, program.targets):  # noqa: B905
                target_node = inputs[target]._position
                if owners:
                    target_node = owners.get(target_node, target_node)
                if source < 0:
                    part = result_addresses[result]
                elif addresses[source] == gradient:
                    part = gradient
                    if nodes[target_node].leaf:
                        self.aliased_leaves.add(target_node)
                else:
                    return False
                if not gradients[target_node]:
                    gradients[target_node] = part
                elif not self._append_part(target_node, part):
                    return False
        stream.launches += launches
        return True

    def _append_part(self, at: int, part: int) -> bool:
        """Append a further partial gradient of a node; False if their sum cannot be linked."""
        parts = self._partials.setdefault(at, [self.gradients[at]])
        parts.append(part)
        return len(parts) <= MAX_PARTS or self._sum_parts(at)

    def _sum_parts(self, at: int) -> bool:
        """Append the sum of a node's partial gradients, which becomes its gradient; False if it cannot be linked."""
        parts, node, linked = self._partials.pop(at), self._nodes[at], self._linked
        sums: dict[int, Routine] = {} if node.leaf else node._program.sums  # type: ignore[attr-defined]
        routine = sums.get(len(parts))
        if routine is None:
            routine = sums[len(parts)] = sum_of(node._at._dev, linked.specs[at], len(parts))
        image, region = routine.image(self._context, after=0), self._region(at)
        if image is None or not image.has_single_result or region is None:
            return False
        self._stream.words += image.address, region.cursor, *parts
        if not image.is_plain:
            self._stream.add_requirements(image)
            self._stream.words += at, SCRATCH
        self._stream.launches += image.launches
        self.gradients[at] = region.cursor
        region.cursor += image.aligned_bytes
        if region.counted:
            region.sizes += image.sizes
        self.aliased_leaves.discard(at)
        return True
