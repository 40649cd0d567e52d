"""matmul, mul and their gradients: each is one or two GEMMs, whose geometry ``gemms_of`` works out.

The products take any epilogue, where they are stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE, Gemm, Kernel, epilogue_refusal, epilogue_text, gemms_of, product_call
from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, Span, compute_dtype, register_kernel

from .gemm import gemm, pack, shape_of, tiles, width_of
from .source import HEAVY, Maker, Packing, Workspace, filler, part, scratch

Step = Callable[[Context, IO], None]
MANY = 64
"""Rows from which on a product packs B."""
LARGE, FEWEST = 1 << 22, 32
"""Multiplications, and rows and columns, of a product that outruns BLAS."""
WIDE = ("float32", "float64")


def _products(call: Call, context: Context) -> Any:
    """Run the GEMMs of a call one after the other, in one workspace."""
    packings: defaultdict[str, Packing] = defaultdict(Packing)
    made = [_product(product, call, context, packings) for product in gemms_of(call)]
    steps = [step for step, _ in made]
    packed = {slot: packing.form() for slot, packing in packings.items()}

    def run(context: Context, io: IO) -> None:
        for step in steps:
            step(context, io)

    return Prepared(run, max((need for _, need in made), default=0), packed=packed)


def _product(product: Gemm, call: Call, context: Context, packings: defaultdict[str, Packing]) -> tuple[Step, int]:
    """Return the step that computes one product, and the bytes of workspace it takes.

    ``packings`` are those of operands that it would rather find converted or transposed, by slot.
    """
    a, b, out = product.a, product.b, product.out
    m, n, k = product.m, product.n, product.k
    whole = call if call.epilogue is None else product_call(call)
    stored, dtype = whole.dtype(out), compute_dtype(whole.dtype(out))
    size = prod(whole.dims(out))
    epilogue = epilogue_text(call, context.language) if call.epilogue is not None and size else None
    if not size:
        return (lambda context, io: None), 0
    if not k or 0 in product.batch:  # the sum of nothing
        zeros = filler(context, stored)
        return (lambda context, io: zeros(context, io.span(out), size)), 0
    rows, lanes = shape_of(context, dtype)
    width = width_of(context, dtype, n)
    space, a_size, b_size = Workspace(), m * k, n * k
    a_steps = (1, m, rows) if product.a_transposed else (k, 1, rows * k)
    b_steps, turned = (n, width), product.b_transposed and n > 1 and k > 1
    pack_a, a_start, a_at, pack_b, b_start, b_at = None, 0, 0, None, 0, 0
    if stored != dtype or (product.a_transposed and n >= MANY):
        count = prod(product.a_dims[:-2])
        pack_a, a_size = pack(context, stored, dtype, rows, m, k, count, not product.a_transposed)
        a_steps, nbytes = (1, rows, rows * k), count * a_size * ITEMSIZE[dtype]
        a_start = space.take(nbytes)
        a_at = packings[a].add(nbytes, ("rows", m, k, product.a_transposed, rows, dtype), pack_a)
    if stored != dtype or turned or m >= MANY:
        count = prod(product.b_dims[:-2])
        pack_b, b_size = pack(context, stored, dtype, width, n, k, count, product.b_transposed)
        b_steps, nbytes = (width, k * width), count * b_size * ITEMSIZE[dtype]
        b_start = space.take(nbytes)
        b_at = packings[b].add(nbytes, ("columns", n, k, product.b_transposed, width, dtype), pack_b)
    kept, summed = _batches(product)
    what = dtype, stored, width // lanes, len(kept), len(summed), epilogue
    kernel, updates = gemm(context, *what), call.epilogue is not None and bool(call.op.must_alias)
    axes = [(size, a_step // (m * k) * a_size, b_step // (n * k) * b_size) for size, a_step, b_step in (*kept, *summed)]
    numbers = (m, n, k, *a_steps, *b_steps, product.alpha, *sum(axes, ()))
    slots = [out]
    if epilogue is not None:
        numbers += tuple(value for _, _, value in epilogue.numbers)
        slots = [slot for *_, slot in epilogue.buffers]
    items = tiles(context, dtype, m, n, [axis[0] for axis in kept])

    def step(context: Context, io: IO) -> None:
        if not space.need:
            left, right = io.span(a), io.span(b)
        else:
            made = scratch(io)
            left = _form(context, io, a, pack_a, part(made, a_start), a_at)
            right = _form(context, io, b, pack_b, part(made, b_start), b_at)
        spans = [left, right, *map(io.span, slots)]
        if updates and getattr(context, "suspect", True):  # what is written may be state
            guard = gemm(io.context, *what, True)
            guard(context, items, [*spans, context.status_span()], numbers, HEAVY)
        else:
            kernel(context, items, spans, numbers, HEAVY)

    return step, space.need


def _form(context: Context, io: IO, slot: str, make: Maker | None, scratch: Span, kept_at: int) -> Span:
    """Return an operand as the product reads it: as it lies, kept from an earlier run, or made now."""
    if make is None:
        return io.span(slot)
    kept = io.packed(slot)
    if kept is not None:
        return part(kept, kept_at)
    make(context, io.span(slot), scratch)
    return scratch


def _batches(product: Gemm) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Return (size, step in A, step in B) of the batch axes: those that are kept, neighbours joined, and summed."""
    axes = []
    rank = len(product.batch)
    for dims in (product.a_dims, product.b_dims):
        padded = (1,) * (rank + 2 - len(dims)) + dims
        axes.append([0 if padded[axis] == 1 else prod(padded[axis + 1 :]) for axis in range(rank)])
    kept: list[tuple[int, int, int]] = []
    summed: list[tuple[int, int, int]] = []
    for axis, (size, step_a, step_b) in enumerate(zip(product.batch, *axes, strict=True)):
        if size == 1:
            continue
        chosen = summed if axis in product.summed else kept
        if chosen and chosen[-1][1:] == (size * step_a, size * step_b):
            chosen[-1] = (chosen[-1][0] * size, step_a, step_b)
        else:
            chosen.append((size, step_a, step_b))
    return kept, summed


def _supports(call: Call) -> str | None:
    if call.epilogue is None:
        return None
    products = gemms_of(call) if call.known else ()
    if any(not product.k or 0 in product.batch for product in products):
        return "a sum of nothing"
    return next((why for product in products if (why := epilogue_refusal(call, product.n)) is not None), None)


def _supports_large(call: Call) -> str | None:
    """Why a product is left to BLAS."""
    if not call.known:
        return "its size, which decides, is not known yet"
    for product in gemms_of(call):
        m, n, k = product.m, product.n, product.k
        if min(m, n) < FEWEST or prod(product.batch) * m * n * k < LARGE:
            return f"[{m}, {k}] by [{k}, {n}]: short products are faster by BLAS"
    return _supports(call)


def _registered(op: str, finishes: bool) -> tuple[Kernel, Kernel]:
    """Two kernels: for each kernel language, and before BLAS for large products where vector registers are named.

    ``finishes`` says that they compute an epilogue.
    """
    plain = KernelOptions(predicated=finishes, epilogue=finishes)
    large = KernelOptions(predicated=finishes, epilogue=finishes, written_for="registers")
    return (
        register_kernel(op, "language", supports=_supports, options=plain, inplace=finishes)(_products),
        register_kernel(
            op, "cpu", library="registers", dtypes=WIDE, supports=_supports_large, options=large, inplace=finishes
        )(_products),
    )


matmul, matmul_large = _registered("matmul", True)
mul, mul_large = _registered("mul", True)
matmul_grad, matmul_grad_large = _registered("matmul_grad", False)
mul_grad, mul_grad_large = _registered("mul_grad", False)
