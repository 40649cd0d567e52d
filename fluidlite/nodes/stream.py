"""What a linked graph needs of its nodes: their images, where leaves lie, and the stream that is run."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from ctypes import memmove

from fluidlite.compiler.instrumentation import observed
from fluidlite.memory.arena import arenas_in_use
from fluidlite.nodes.image import RoutineImage
from fluidlite.nodes.node import Node
from fluidlite.nodes.node_program import NodeProgram
from fluidlite.nodes.operator_node import OperatorNode
from fluidlite.nodes.regions import OFFSET, SCRATCH, Regions
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.kernel_language import REGION_BIT

Both = tuple[RoutineImage, "RoutineImage | None"]
"""The images of a node's value, and of its gradient."""


def may_link(nodes: Sequence[Node], context: Context) -> bool:
    """Whether graphs can be linked on a place now."""
    if nodes[-1].leaf or observed() or arenas_in_use():
        return False
    return getattr(context.language, "run_images", None) is not None


def images_of(program: NodeProgram, context: Context) -> Both | None:
    """The images of a program, made if it was used a few times; None if it has none."""
    if program.error is not None or program.kind.random:
        return None
    forward = program.forward.image(context)
    backward = program.backward.image(context) if program.backward is not None else None
    if forward is None or (backward is None and program.backward is not None):
        return None
    for other in [each for each in program.images if each.closed]:
        del program.images[other]
    found = program.images[context] = forward, backward
    return found


def ask_for_images(nodes: Iterable[Node], context: Context) -> None:
    """Ask for the images of nodes: they count how often they are, and are made in time."""
    for node in nodes:
        if type(node) is OperatorNode and node._program is not None and context not in node._program.images:
            images_of(node._program, context)


class Stream:
    """Images with their registers, and what has to be counted of them.

    ``words``: of each image, its address and its registers.
    ``scratch``: bytes of what is forgotten.
    ``marks``: whether a kernel may set the status word.
    """

    __slots__ = ("launches", "marks", "scratch", "words")

    def __init__(self) -> None:
        self.words: list[int] = []
        self.launches = self.scratch = 0
        self.marks = False

    def note(self, image: RoutineImage) -> None:
        """Note an image that is more than its words."""
        if image.scratch > self.scratch:
            self.scratch = image.scratch
        if image.marks:
            self.marks = True

    def run(self, context: Context, regions: Regions, start: tuple[int, int, int] | None = None) -> None:
        """Do the images, in a queue that is held; ``start`` is copied first: where to, from which address, and how many
        bytes.
        """
        bases = regions.bases()
        if self.marks:
            context.status_span()
        if start is not None:
            to, source, nbytes = start
            memmove(bases[to >> REGION_BIT] + (to & OFFSET), source, nbytes)
        context.counts.launches += self.launches
        context.language.run_images(array("q", self.words), bases)


def address_of(value: Tensor | None, context: Context) -> int:
    """Where a leaf's value lies, if native code can read it as it is, and nobody has to be waited for; else 0."""
    if value is None or value._strides is not None:
        return 0
    allocation = value.allocation
    if allocation is None:
        return 0
    sharing = allocation.sharing  # a context of another place is none of these
    if (allocation.context if sharing is None else sharing.writer) is not context and (
        sharing is None or context not in sharing.readers
    ):
        return 0
    block = allocation.block
    found = (block.address or 0) + allocation.offset + value._byte_offset if block is not None else 0
    return found if found < SCRATCH else 0  # above are the numbers of regions
