"""The gradients of a linked graph, as one stream of images."""

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
from fluidlite.nodes.stream import Stream
from fluidlite.platform.context import Context
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nodes.linked import Linked

MAX_STARTS = 64
_starts: LRUCache[tuple[Any, int]] = LRUCache(MAX_STARTS, "gradients to begin with", 1 << 20)


def _start_of(spec: Spec, coefficient: float) -> tuple[Any, int]:
    """A gradient to begin with, which nobody writes, and its address."""

    def make() -> tuple[Any, int]:
        made = np.full(spec.dims, coefficient, NUMPY[spec.dtype])
        return made, made.ctypes.data

    return _starts.get((spec, coefficient), make)


class Backward:
    """The gradients of a graph, in the order in which they are made.

    ``gradients``: where that of each node lies; 0: it has none.
    ``passed``: leaves whose gradient lies where that of another node does.
    """

    __slots__ = ("_context", "_linked", "_more", "_nodes", "_stream", "gradients", "passed", "regions")

    def __init__(self, linked: Linked, nodes: Sequence[Node], context: Context) -> None:
        self._linked, self._nodes, self._context = linked, nodes, context
        self._stream = Stream()
        self._more: dict[int, list[int]] = {}
        """The parts of gradients that are more than one."""
        self.gradients = [0] * len(nodes)
        self.passed: set[int] = set()
        self.regions = Regions(context, linked.memory)

    def run(self, coefficient: float) -> bool:
        """Compute all; False, and nothing is done, if something of it cannot be linked."""
        linked, last = self._linked, len(self._nodes) - 1
        home = linked.homes.get(last, last)
        spec = linked.specs[-1]
        region = self._region(home)
        if region is None:
            return False
        start = self.gradients[home] = region.take(spec.nbytes, self.regions.alignment)
        if not self._link(region) or not self.regions.take(self._stream.scratch):
            return False
        kept, source = _start_of(spec, coefficient)
        self._stream.run(self._context, self.regions, (start, source, spec.nbytes))
        del kept
        return True

    def _region(self, at: int) -> Region | None:
        """Where the gradient of a node lies."""
        linked = self._linked
        return self.regions.of(linked.devs[at] if linked.devs else self._nodes[at]._at._dev)

    def _link(self, first: Region) -> bool:
        """Write down the stream; False if something of it cannot be linked."""
        nodes, linked, gradients, more, stream = self._nodes, self._linked, self.gradients, self._more, self._stream
        address, given, kept = linked.address, linked.input_addresses, linked.kept
        homes, devs, images, words = linked.homes, linked.devs, linked.images, stream.words
        region = first
        at, launches = len(nodes), 0
        for node in reversed(nodes):
            at -= 1
            gradient = gradients[at]
            if not gradient:
                continue
            if at in more:
                if not self._add_up(at):
                    return False
                gradient = gradients[at]
            both = images[at]
            if both is None:
                continue
            image = both[1]
            if image is None:
                continue
            program, inputs = node._program, node._inputs  # type: ignore[attr-defined]
            mine = program.pick([*given[at], address[at], *(kept.get(at, ()) if kept else ()), gradient])
            if image.brief is not None and not devs:  # most are
                word, room, size, count = image.brief
                part = region.cursor
                words += (word, part, *mine)
                region.cursor = part + room
                launches += count
                if region.counted:
                    region.sizes.append(size)
                to = inputs[program.targets[0]]._position
                if homes:
                    to = homes.get(to, to)
                if not gradients[to]:
                    gradients[to] = part
                elif not self._note_part(to, part):
                    return False
                continue
            launches += image.launches
            lies = []
            for which, room, size in zip(image.fetches, image.rooms, image.sizes):  # noqa: B905  # it is faster
                if devs:
                    dev = devs[inputs[program.targets[which]]._position]
                    if dev is not region.dev:
                        where = self.regions.of(dev)
                        if where is None:
                            return False
                        region = where
                lies.append(region.cursor)
                region.cursor += room
                if region.counted:
                    region.sizes.append(size)
            words += (image.address, *lies, *mine)
            if not image.plain:
                stream.note(image)
                words += (at, SCRATCH)
            for (source, own), target in zip(image.outs, program.targets):  # noqa: B905
                to = inputs[target]._position
                if homes:
                    to = homes.get(to, to)
                if source < 0:
                    part = lies[own]
                elif mine[source] == gradient:
                    part = gradient
                    if nodes[to].leaf:
                        self.passed.add(to)
                else:
                    return False
                if not gradients[to]:
                    gradients[to] = part
                elif not self._note_part(to, part):
                    return False
        stream.launches += launches
        return True

    def _note_part(self, at: int, part: int) -> bool:
        """Note a second part of a gradient, or a later one; False: their sum cannot be linked."""
        mine = self._more.setdefault(at, [self.gradients[at]])
        mine.append(part)
        return len(mine) <= MAX_PARTS or self._add_up(at)

    def _add_up(self, at: int) -> bool:
        """Let the sum of a gradient's parts be the gradient."""
        mine, node, linked = self._more.pop(at), self._nodes[at], self._linked
        known: dict[int, Routine] = {} if node.leaf else node._program.sums  # type: ignore[attr-defined]
        routine = known.get(len(mine))
        if routine is None:
            routine = known[len(mine)] = sum_of(node._at._dev, linked.specs[at], len(mine))
        image, region = routine.image(self._context, after=0), self._region(at)
        if image is None or not image.single or region is None:
            return False
        self._stream.words += image.address, region.cursor, *mine
        if not image.plain:
            self._stream.note(image)
            self._stream.words += at, SCRATCH
        self._stream.launches += image.launches
        self.gradients[at] = region.cursor
        region.cursor += image.room
        if region.counted:
            region.sizes += image.sizes
        self.passed.discard(at)
        return True
