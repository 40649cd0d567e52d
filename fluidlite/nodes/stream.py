"""ImageStream: the images of a linked graph with their addresses; images of nodes, and addresses of leaves."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from ctypes import memmove

from fluidlite.compiler.instrumentation import is_observed
from fluidlite.memory.arena import arenas_in_use
from fluidlite.nodes.image import RoutineImage
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import NodeProgram
from fluidlite.nodes.operator_node import OperatorNode
from fluidlite.nodes.regions import OFFSET_MASK, SCRATCH, Regions
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.kernel_language import REGION_BIT

NodeImages = tuple[RoutineImage, "RoutineImage | None"]
"""The images of a node's value, and of its gradient."""


def can_link(nodes: Sequence[Node], context: Context) -> bool:
    """Whether graphs can be linked on a place now."""
    if nodes[-1].leaf or is_observed() or arenas_in_use():
        return False
    return getattr(context.language, "run_images", None) is not None


def node_images(program: NodeProgram, context: Context) -> NodeImages | None:
    """The images of a program, made after it was used a few times; None before, or if it cannot be linked."""
    if program.error is not None or program.kind.random:
        return None
    forward = program.forward.image(context)
    backward = program.backward.image(context) if program.backward is not None else None
    if forward is None or (backward is None and program.backward is not None):
        return None
    for closed_context in [image_context for image_context in program.images if image_context.closed]:
        del program.images[closed_context]
    images = program.images[context] = forward, backward
    return images


def count_image_uses(nodes: Iterable[Node], context: Context) -> None:
    """Count a use of each node's routines, so that their images are made after a few uses."""
    for node in nodes:
        if type(node) is OperatorNode and node._program is not None and context not in node._program.images:
            node_images(node._program, context)


class ImageStream:
    """Images with their registers, and their total launches and scratch memory.

    ``words``: for each image its address and its registers.
    ``scratch``: bytes of scratch memory, the maximum of the images.
    ``may_fail``: whether a kernel may set the status word.
    """

    __slots__ = ("launches", "may_fail", "scratch", "words")

    def __init__(self) -> None:
        self.words: list[int] = []
        self.launches = self.scratch = 0
        self.may_fail = False

    def add_requirements(self, image: RoutineImage) -> None:
        """Register the scratch memory and errors of an image that is not plain."""
        if image.scratch > self.scratch:
            self.scratch = image.scratch
        if image.may_fail:
            self.may_fail = True

    def run(self, context: Context, regions: Regions, start: tuple[int, int, int] | None = None) -> None:
        """Run the images in a locked queue, after copying ``start``: target address, source address, bytes."""
        bases = regions.bases()
        if self.may_fail:
            context.status_span()
        if start is not None:
            target, source, nbytes = start
            memmove(bases[target >> REGION_BIT] + (target & OFFSET_MASK), source, nbytes)
        context.counts.launches += self.launches
        context.language.run_images(array("q", self.words), bases)


def address_of(value: Tensor | None, context: Context) -> int:
    """The address of a leaf's value if native code can read it there without waiting; else 0."""
    if value is None or value._strides is not None:
        return 0
    allocation = value.allocation
    if allocation is None:
        return 0
    sharing = allocation.sharing  # never a context of another place
    if (allocation.context if sharing is None else sharing.writer) is not context and (
        sharing is None or context not in sharing.readers
    ):
        return 0
    block = allocation.block
    address = (block.address or 0) + allocation.offset + value._byte_offset if block is not None else 0
    return address if address < SCRATCH else 0  # the upper bits are region numbers
