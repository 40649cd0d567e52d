"""matmul, mul and their gradients as one or two GEMMs, whose dims and strides ``gemms_of`` returns.

Any epilogue is fused into the store of the product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from math import prod
from typing import Any

from fluidlite.kernel_support import (
    ITEMSIZE,
    Gemm,
    Kernel,
    epilogue_refusal,
    epilogue_text,
    gemms_of,
    product_call,
    runs_side_by_side,
)
from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, Span, compute_dtype, register_kernel

from .gemm import gemm, pack, tile_count, tile_shape, tile_width
from .source import PER_ITEM, Pack, Packing, Workspace, scratch, span_at, zero_filler

CallStep = Callable[[Context, IO], None]
MIN_PACKED_ROWS = 64
"""Rows of A from which on B is packed, and columns of B from which on a transposed A is packed."""
MIN_MULTIPLIES, MIN_ROWS = 1 << 22, 32
"""Minimum multiply-adds, and minimum rows and columns, of a product that is faster than BLAS."""
MAX_PACKED_BYTES, MIN_CHUNK_TILES = 1 << 20, 256
"""Bytes of a batch's packed matrices that are multiplied at a time, since they stay in a cache; more for few tiles."""
DTYPES = ("float32", "float64")


def _products(call: Call, context: Context) -> Any:
    """Return the kernel that runs the GEMMs of a call in order, in one workspace."""
    packings: defaultdict[str, Packing] = defaultdict(Packing)
    steps_and_needs = [_product(product, call, context, packings) for product in gemms_of(call)]
    steps = [step for step, _ in steps_and_needs]
    packed = {slot: packing.declaration() for slot, packing in packings.items()}

    def run(context: Context, io: IO) -> None:
        for step in steps:
            step(context, io)

    return Prepared(run, max((need for _, need in steps_and_needs), default=0), packed=packed)


def _product(product: Gemm, call: Call, context: Context, packings: defaultdict[str, Packing]) -> tuple[CallStep, int]:
    """Return the step that computes one product, and the bytes of workspace that it needs.

    ``packings``: the packed forms of operands, by slot; the step adds the operands that it converts or transposes.
    """
    a, b, out = product.a, product.b, product.out
    m, n, k = product.m, product.n, product.k
    base_call = call if call.epilogue is None else product_call(call)
    stored, dtype = base_call.dtype(out), compute_dtype(base_call.dtype(out))
    size = prod(base_call.dims(out))
    epilogue = epilogue_text(call, context.language) if call.epilogue is not None and size else None
    if not size:
        return (lambda context, io: None), 0
    if not k or 0 in product.batch:  # an empty sum
        zeros = zero_filler(context, stored)
        return (lambda context, io: zeros(context, io.span(out), size)), 0
    rows, lanes = tile_shape(context, dtype)
    width = tile_width(context, dtype, n)
    batch, sums = _batches(product)
    left = _Operand(a, product.a_dims, stored, dtype, (1, m, rows) if product.a_transposed else (k, 1, rows * k))
    if stored != dtype or (product.a_transposed and n >= MIN_PACKED_ROWS):
        left.pack_as(partial(pack, context, stored, dtype, rows, m, k), not product.a_transposed)
        left.steps = 1, rows, rows * k
    right = _Operand(b, product.b_dims, stored, dtype, (n, width))
    if stored != dtype or (product.b_transposed and n > 1 and k > 1) or m >= MIN_PACKED_ROWS:
        right.pack_as(partial(pack, context, stored, dtype, width, n, k), product.b_transposed)
        right.steps = width, k * width
    matrices = chunk = prod(size for size, _, _ in batch)
    if len(batch) == 1 and not sums and epilogue is None and not runs_side_by_side(context.language):
        (_, *strides), tiles = batch[0], tile_count(context, dtype, m, n, [])
        nbytes = sum(each.packed_step for each, stride in zip((left, right), strides, strict=True) if stride)
        if nbytes:
            chunk = min(matrices, max(1, MAX_PACKED_BYTES // nbytes, -(-MIN_CHUNK_TILES // tiles)))
            left.split(chunk, strides[0])
            right.split(chunk, strides[1])
    space = Workspace()
    left.reserve(space, packings, ("rows", m, k, product.a_transposed, rows, dtype))
    right.reserve(space, packings, ("columns", n, k, product.b_transposed, width, dtype))
    kernel_arguments = dtype, stored, width // lanes, len(batch), len(sums), epilogue
    kernel, updates = gemm(context, *kernel_arguments), call.epilogue is not None and bool(call.op.must_alias)
    axes = [(size, x * left.size, y * right.size) for size, x, y in (*batch, *sums)]
    constants, parameters, slots = (m, n, k, *left.steps, *right.steps, product.alpha), (), [out]
    if epilogue is not None:
        parameters = tuple(value for _, _, value in epilogue.numbers)
        slots = [slot for *_, slot in epilogue.buffers]
    launches = list[tuple[int, int, int, tuple[Any, ...]]]()
    for first in range(0, matrices, chunk):
        count = min(chunk, matrices - first)
        sizes = axes if count == matrices else [(count, *axes[0][1:])]
        items = tile_count(context, dtype, m, n, [size for size, _, _ in sizes[: len(batch)]])
        launches.append((first, count, items, (*constants, *sum(sizes, ()), *parameters)))
    out_step = m * n * ITEMSIZE[stored]

    def step(context: Context, io: IO) -> None:
        for first, count, items, numbers in launches:
            spans = [left.span(context, io, first, count), right.span(context, io, first, count)]
            spans += [span_at(io.span(slot), first * out_step) if first else io.span(slot) for slot in slots]
            if updates and getattr(context, "may_have_error", True):  # the output may be state
                predicated_kernel = gemm(io.context, *kernel_arguments, True)
                predicated_kernel(context, items, [*spans, context.status_span()], numbers, PER_ITEM)
            else:
                kernel(context, items, spans, numbers, PER_ITEM)

    return step, space.need


class _Operand:
    """An operand of a product: its matrices are read where they lie, or packed, all or those of a chunk at a time.

    ``steps``: the strides of its elements in a matrix and between tiles.
    ``size``: elements of a matrix, as it is read.
    """

    def __init__(self, slot: str, dims: Sequence[int], stored: str, dtype: str, steps: tuple[int, ...]) -> None:
        self.slot, self.dtype, self.steps, self.size = slot, dtype, steps, prod(dims[-2:])
        self._count = self._chunk = prod(dims[:-2])
        self._step, self.packed_step = self.size * ITEMSIZE[stored], 0
        self._pack: Callable[[int], Pack] | None = None
        self._start = self._packed_at = 0

    def pack_as(self, pack: Callable[..., tuple[Pack, int]], transposed: bool) -> None:
        """Pack matrices by ``pack(count, transposed)``, which also returns the elements of a packed matrix."""
        self._pack = cache(lambda count: pack(count, transposed)[0])
        self.size = pack(1, transposed)[1]
        self.packed_step = self.size * ITEMSIZE[self.dtype]

    def split(self, chunk: int, stride: int) -> None:
        """Read ``chunk`` matrices at a time, or the same ones each time if the stride of the batch is 0."""
        if stride:
            self._chunk = chunk
        else:
            self._step = 0

    def reserve(self, space: Workspace, packings: defaultdict[str, Packing], key: Hashable) -> None:
        """Reserve the workspace of a chunk's packed matrices, and declare the packed form of all, if it is packed."""
        if self._pack is not None:
            self._start = space.take(self._chunk * self.packed_step)
            self._packed_at = packings[self.slot].add(self._count * self.packed_step, key, self._pack(self._count))

    def span(self, context: Context, io: IO, first: int, count: int) -> Span:
        """The matrices from ``first`` on: in place, packed by an earlier run, or packed now."""
        source = io.span(self.slot)
        if self._pack is None:
            return span_at(source, first * self._step) if first else source
        packed, is_whole = io.packed(self.slot), self._chunk == self._count
        if packed is not None:
            return span_at(packed, self._packed_at + (0 if is_whole else first * self.packed_step))
        target = span_at(scratch(io), self._start)
        if not is_whole:
            self._pack(count)(context, span_at(source, first * self._step), target)
        elif not first:
            self._pack(self._count)(context, source, target)
        return target


def _batches(product: Gemm) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Return (size, step in A, step in B), in matrices, of the output's batch axes and of the summed ones, merged."""
    a_steps, b_steps, _ = product.steps()
    batch: list[tuple[int, int, int]] = []
    sums: list[tuple[int, int, int]] = []
    for axis, (size, step_a, step_b) in enumerate(zip(product.batch, a_steps, b_steps, strict=True)):
        if size == 1:
            continue
        target = sums if axis in product.summed else batch
        if target and target[-1][1:] == (size * step_a, size * step_b):
            target[-1] = (target[-1][0] * size, step_a, step_b)
        else:
            target.append((size, step_a, step_b))
    return batch, sums


def _supports(call: Call) -> str | None:
    if call.epilogue is None:
        return None
    products = gemms_of(call) if call.is_static else ()
    if any(not product.k or 0 in product.batch for product in products):
        return "a sum of nothing"
    return next((reason for product in products if (reason := epilogue_refusal(call, product.n)) is not None), None)


def _supports_large(call: Call) -> str | None:
    """Return why a product is left to BLAS, or None."""
    if not call.is_static:
        return "its size, which decides, is not known yet"
    for product in gemms_of(call):
        m, n, k = product.m, product.n, product.k
        if min(m, n) < MIN_ROWS or prod(product.batch) * m * n * k < MIN_MULTIPLIES:
            return f"[{m}, {k}] by [{k}, {n}]: short products are faster by BLAS"
    return _supports(call)


def _registered(op: str, finishes: bool) -> tuple[Kernel, Kernel]:
    """Register two kernels: one for every kernel language, and one with a higher priority than BLAS for large products.

    The latter needs a kernel language that states its vector registers. ``finishes``: they compute an epilogue.
    """
    options = KernelOptions(predicated=finishes, epilogue=finishes)
    large_options = KernelOptions(predicated=finishes, epilogue=finishes, written_for="registers")
    return (
        register_kernel(op, "language", supports=_supports, options=options, inplace=finishes)(_products),
        register_kernel(
            op,
            "cpu",
            library="registers",
            dtypes=DTYPES,
            supports=_supports_large,
            options=large_options,
            inplace=finishes,
        )(_products),
    )


matmul, matmul_large = _registered("matmul", True)
mul, mul_large = _registered("mul", True)
matmul_grad, matmul_grad_large = _registered("matmul_grad", False)
mul_grad, mul_grad_large = _registered("mul_grad", False)
