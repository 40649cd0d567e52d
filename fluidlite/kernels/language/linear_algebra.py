"""matmul, mul and their gradients as one or two GEMMs, whose dims and strides ``gemms_of`` returns.

Any epilogue is fused into the store of the product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE, Gemm, Kernel, epilogue_refusal, epilogue_text, gemms_of, product_call
from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, Span, compute_dtype, register_kernel

from .gemm import gemm, pack, tile_count, tile_shape, tile_width
from .source import PER_ITEM, Pack, Packing, Workspace, scratch, span_at, zero_filler

CallStep = Callable[[Context, IO], None]
MIN_PACKED_ROWS = 64
"""Rows of A from which on B is packed, and columns of B from which on a transposed A is packed."""
MIN_MULTIPLIES, MIN_ROWS = 1 << 22, 32
"""Minimum multiply-adds, and minimum rows and columns, of a product that is faster than BLAS."""
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
    space, a_size, b_size = Workspace(), m * k, n * k
    a_steps = (1, m, rows) if product.a_transposed else (k, 1, rows * k)
    b_steps, transposed = (n, width), product.b_transposed and n > 1 and k > 1
    pack_a, a_start, a_at, pack_b, b_start, b_at = None, 0, 0, None, 0, 0
    if stored != dtype or (product.a_transposed and n >= MIN_PACKED_ROWS):
        count = prod(product.a_dims[:-2])
        pack_a, a_size = pack(context, stored, dtype, rows, m, k, count, not product.a_transposed)
        a_steps, nbytes = (1, rows, rows * k), count * a_size * ITEMSIZE[dtype]
        a_start = space.take(nbytes)
        a_at = packings[a].add(nbytes, ("rows", m, k, product.a_transposed, rows, dtype), pack_a)
    if stored != dtype or transposed or m >= MIN_PACKED_ROWS:
        count = prod(product.b_dims[:-2])
        pack_b, b_size = pack(context, stored, dtype, width, n, k, count, product.b_transposed)
        b_steps, nbytes = (width, k * width), count * b_size * ITEMSIZE[dtype]
        b_start = space.take(nbytes)
        b_at = packings[b].add(nbytes, ("columns", n, k, product.b_transposed, width, dtype), pack_b)
    batch, sums = _batches(product)
    kernel_arguments = dtype, stored, width // lanes, len(batch), len(sums), epilogue
    kernel, updates = gemm(context, *kernel_arguments), call.epilogue is not None and bool(call.op.must_alias)
    axes = [(size, a_step // (m * k) * a_size, b_step // (n * k) * b_size) for size, a_step, b_step in (*batch, *sums)]
    numbers = (m, n, k, *a_steps, *b_steps, product.alpha, *sum(axes, ()))
    slots = [out]
    if epilogue is not None:
        numbers += tuple(value for _, _, value in epilogue.numbers)
        slots = [slot for *_, slot in epilogue.buffers]
    items = tile_count(context, dtype, m, n, [axis[0] for axis in batch])

    def step(context: Context, io: IO) -> None:
        if not space.need:
            left, right = io.span(a), io.span(b)
        else:
            workspace = scratch(io)
            left = _packed_operand(context, io, a, pack_a, span_at(workspace, a_start), a_at)
            right = _packed_operand(context, io, b, pack_b, span_at(workspace, b_start), b_at)
        spans = [left, right, *map(io.span, slots)]
        if updates and getattr(context, "may_have_error", True):  # the output may be state
            predicated_kernel = gemm(io.context, *kernel_arguments, True)
            predicated_kernel(context, items, [*spans, context.status_span()], numbers, PER_ITEM)
        else:
            kernel(context, items, spans, numbers, PER_ITEM)

    return step, space.need


def _packed_operand(context: Context, io: IO, slot: str, pack: Pack | None, scratch: Span, packed_at: int) -> Span:
    """Return an operand as the product reads it: in place, packed by an earlier run, or packed now."""
    if pack is None:
        return io.span(slot)
    packed = io.packed(slot)
    if packed is not None:
        return span_at(packed, packed_at)
    pack(context, io.span(slot), scratch)
    return scratch


def _batches(product: Gemm) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Return (size, stride in A, stride in B) of the output's batch axes and of the summed ones, merging axes."""
    axes = []
    rank = len(product.batch)
    for dims in (product.a_dims, product.b_dims):
        padded = (1,) * (rank + 2 - len(dims)) + dims
        axes.append([0 if padded[axis] == 1 else prod(padded[axis + 1 :]) for axis in range(rank)])
    batch: list[tuple[int, int, int]] = []
    sums: list[tuple[int, int, int]] = []
    for axis, (size, step_a, step_b) in enumerate(zip(product.batch, *axes, strict=True)):
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
