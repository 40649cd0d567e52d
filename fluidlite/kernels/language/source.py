"""Shared helpers of the kernels in this package, besides the public ``kernel_source``: workspaces, group hints."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from fluidlite.kernel_support import Convolution, CorrelationAxis, aligned, convolutions_of
from fluidlite.plugin import IO, Call, Context, Prepared, Span, kernel_source

MakeArguments = ParamSpec("MakeArguments")
REGISTER_SUM_TERMS = 512
"""Terms that are summed in registers before the sum is added to memory: blocked sums round less than one long sum."""
PER_ITEM = 1
"""Group size for long work-items, which are scheduled one by one."""

COPY_DTYPES = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""The dtype as which a copy reads and writes elements, by their bytes."""


Buffer = kernel_source.Buffer
CompiledKernel = kernel_source.Kernel
build = kernel_source.build
ctype = kernel_source.ctype
decode = kernel_source.decode
function = kernel_source.function
load = kernel_source.load
store = kernel_source.store

STATUS = Buffer("status", "int64", True)
"""The status word, for kernels that record an index that is out of range."""


def cached_per_context(
    make: Callable[Concatenate[Context, MakeArguments], CompiledKernel],
) -> Callable[Concatenate[Context, MakeArguments], CompiledKernel]:
    """Cache the kernel that ``make`` returns by context and arguments, so that calls with other dims share it."""

    @wraps(make)
    def cached_kernel(context: Context, /, *args: MakeArguments.args, **named: MakeArguments.kwargs) -> CompiledKernel:
        key = make, args, tuple(named.items())
        kernel: CompiledKernel = context.prepared.get(key, lambda: make(context, *args, **named))
        return kernel

    return cached_kernel


def span_at(span: Span, start: int) -> Span:
    """Return the rest of a span from byte ``start`` on."""
    return Span(span.handle, span.offset + start, span.nbytes - start)


def scratch(io: IO) -> Span:
    """Return the workspace of a kernel that always has one."""
    assert io.workspace is not None
    span: Span = io.workspace.span()
    return span


class Workspace:
    """Allocates aligned parts of a workspace; ``need`` is their total in bytes."""

    def __init__(self) -> None:
        self.need = 0

    def take(self, nbytes: int) -> int:
        """Return the byte offset of a new part of ``nbytes`` bytes."""
        start = self.need
        self.need += aligned(nbytes)
        return start


class Packing(Workspace):
    """The packed form of one input: the parts that computations of a call read, and the functions that pack them."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Hashable] = []
        self._pack_functions: list[Callable[[Context, Span, Span], Any]] = []

    def add(self, nbytes: int, key: Hashable, pack: Callable[[Context, Span, Span], Any]) -> int:
        """Return the offset of a new part that ``pack(context, input, part)`` writes; ``key`` identifies its format."""
        start = self.take(nbytes)
        self._keys.append((start, key))
        self._pack_functions.append(lambda context, source, target: pack(context, source, span_at(target, start)))
        return start

    def declaration(self) -> tuple[int, Callable[[Context, Span, Span], None], Hashable]:
        """Return (bytes, function that packs all parts, key), the declaration that :class:`Prepared` takes."""
        pack_functions = tuple(self._pack_functions)

        def pack(context: Context, source: Span, target: Span) -> None:
            for pack_part in pack_functions:
                pack_part(context, source, target)

        return self.need, pack, tuple(self._keys)


Pack = Callable[[Context, Span, Span], None]
"""``pack(context, source, target)`` writes the packed form of the source."""


def zero_filler(context: Context, dtype: str) -> Callable[[Context, Span, int], None]:
    """Return ``fill(context, target, size)``, which sets ``size`` elements to 0."""
    kernel = build(
        context, f"fill_{dtype}", [Buffer("target", dtype, True)], [], store(context, dtype, "target[gid]", "0")
    )

    def fill(context: Context, target: Span, size: int) -> None:
        if size:
            kernel(context, size, (target,), ())

    return fill


Step = tuple[Callable[[Context, IO, Span], None], int]
"""``step(context, io, scratch)``, which runs one of the computations of a call, and the bytes that it needs."""
Correlate = Callable[[Convolution, tuple[CorrelationAxis, ...], Context, str, Packing], list[Step]]
"""Returns the steps that compute the windows, or the part of an image that some lines reach."""
FilterGradient = Callable[[Convolution, Context, str], Step]
"""Returns the step that computes the gradient of a filter."""


def convolution_kernel(
    call: Call, context: Context, correlate: Correlate, filter_gradient: FilterGradient, flattened: bool = False
) -> Prepared:
    """Return the kernel that runs the computations of a convolution or of a gradient in order, in one workspace.

    ``flattened``: whether an image that one window covers is one pixel.
    """
    steps: list[Step] = []
    packing, filter = Packing(), ""
    for conv in convolutions_of(call):
        conv, dtype = conv.flattened() if flattened else conv, call.dtype(conv.out)
        if conv.kind == "filter":
            steps.append(filter_gradient(conv, context, dtype))
        else:
            filter = conv.filter
            for lines in conv.correlations():
                steps += correlate(conv, lines, context, dtype, packing)

    def run(context: Context, io: IO) -> None:
        space = scratch(io)
        for step, _ in steps:
            step(context, io, space)

    packed = {filter: packing.declaration()} if packing.need else {}
    return Prepared(run, max(need for _, need in steps), packed=packed)


def group_size(items: int) -> int:
    """Return the work-group size for items that are short loops: 1 for few items, 16 for many."""
    return 1 if items < 256 else 16


LANES = 16
"""Partial results of a row that are computed side by side, so that a compiler can vectorize them."""


def pairwise(step: Callable[[str, str], str]) -> str:
    """Return the text of a pairwise reduction of ``acc[0]`` to ``acc[15]`` into ``acc[0]``."""
    return "\n  ".join(
        f"for (int v = 0; v < {half}; ++v) {{ {step('acc[v]', f'acc[v + {half}]')} }}" for half in (8, 4, 2, 1)
    )
