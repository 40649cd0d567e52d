"""What the kernels here share beside the public ``kernel_source``: workspaces and hints."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from fluidlite.kernel_support import aligned
from fluidlite.plugin import IO, Context, Prepared, Span, kernel_source

Given = ParamSpec("Given")
BLOCK = 512
"""Products that are added up in registers, before their sum is added to those in memory: one long sum rounds more."""
HEAVY = 1
"""Group hint of items that are long enough to be scheduled one by one."""

MOVED = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""The type under which elements of a size are moved when their value does not matter."""


Buffer = kernel_source.Buffer
Kernel = kernel_source.Kernel
build = kernel_source.build
ctype = kernel_source.ctype
decode = kernel_source.decode
function = kernel_source.function
load = kernel_source.load
store = kernel_source.store

STATUS = Buffer("status", "int64", True)
"""The status word, for what records an index that is out of range."""


def once_a_context(
    make: Callable[Concatenate[Context, Given], Kernel],
) -> Callable[Concatenate[Context, Given], Kernel]:
    """Write a kernel once for equal arguments, which are hashable: calls of other dims have the same kernels."""

    @wraps(make)
    def found(context: Context, /, *args: Given.args, **named: Given.kwargs) -> Kernel:
        key = make, args, tuple(named.items())
        kernel: Kernel = context.prepared.get(key, lambda: make(context, *args, **named))
        return kernel

    return found


def part(span: Span, start: int) -> Span:
    """The span from byte ``start`` on."""
    return Span(span.handle, span.offset + start, span.nbytes - start)


def scratch(io: IO) -> Span:
    """The workspace, of a kernel that has one in any case."""
    assert io.workspace is not None
    span: Span = io.workspace.span()
    return span


class Workspace:
    """Hands out aligned parts of a workspace, whose total is ``need``."""

    def __init__(self) -> None:
        self.need = 0

    def take(self, nbytes: int) -> int:
        """Return where a part of so many bytes starts."""
        start = self.need
        self.need += aligned(nbytes)
        return start


class Packing(Workspace):
    """The parts in which the computations of a call would rather read one input, and what makes each."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Hashable] = []
        self._made: list[Callable[[Context, Span, Span], Any]] = []

    def add(self, nbytes: int, key: Hashable, pack: Callable[[Context, Span, Span], Any]) -> int:
        """Return where a part starts that ``pack(context, input, part)`` makes; ``key`` says what this depends on."""
        start = self.take(nbytes)
        self._keys.append((start, key))
        self._made.append(lambda context, source, target: pack(context, source, part(target, start)))
        return start

    def form(self) -> tuple[int, Callable[[Context, Span, Span], None], Hashable]:
        """Return the declaration of all parts, for :class:`Prepared`."""
        made = tuple(self._made)

        def pack(context: Context, source: Span, target: Span) -> None:
            for each in made:
                each(context, source, target)

        return self.need, pack, tuple(self._keys)


Maker = Callable[[Context, Span, Span], None]
"""``make(context, source, target)`` writes another form of what lies in the source."""


def filler(context: Context, dtype: str) -> Callable[[Context, Span, int], None]:
    """Return ``fill(context, target, size)``, which sets every element to 0."""
    kernel = build(
        context, f"fill_{dtype}", [Buffer("target", dtype, True)], [], store(context, dtype, "target[gid]", "0")
    )

    def fill(context: Context, target: Span, size: int) -> None:
        if size:
            kernel(context, size, (target,), ())

    return fill


Step = Callable[[Context, IO, Span], None]
"""``step(context, io, scratch)`` computes one of the parts of a call."""


def in_turn(steps: Sequence[tuple[Step, int]], filter: str = "", packing: Packing | None = None) -> Prepared:
    """What runs steps one after the other in one workspace, each with the bytes that it needs there.

    ``filter`` is the slot of which ``packing`` has the parts that the steps would rather read.
    """

    def run(context: Context, io: IO) -> None:
        space = scratch(io)
        for step, _ in steps:
            step(context, io, space)

    packed = {filter: packing.form()} if packing is not None and packing.need else {}
    return Prepared(run, max(need for _, need in steps), packed=packed)


def group_size(items: int) -> int:
    """Group hint of items that are short loops: few are scheduled singly, many by sixteen."""
    return 1 if items < 256 else 16


LANES = 16
"""How many partial results of a row stand side by side, for a compiler to put into vectors."""


def tree(step: Callable[[str, str], str]) -> str:
    """Text that joins ``acc[0]`` to ``acc[15]`` in ``acc[0]``, pair by pair."""
    return "\n  ".join(
        f"for (int v = 0; v < {half}; ++v) {{ {step('acc[v]', f'acc[v + {half}]')} }}" for half in (8, 4, 2, 1)
    )
