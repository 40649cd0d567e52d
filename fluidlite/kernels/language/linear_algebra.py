"""matmul, mul and their gradients: each is one or two GEMMs, whose geometry ``gemms_of`` works out.

The products take any epilogue, where they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE, Gemm, epilogue_refusal, epilogue_text, gemms_of, product_call
from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, Span, compute_dtype, register_kernel

from .gemm import columns_for, gemm, tiles
from .source import HEAVY, Packing, part
from .strided import Mover, filler, mover, steps_of

Step = Callable[[Context, IO], None]
_ALIGN = 256
"""Bytes to which parts of the workspace are aligned."""


def _products(call: Call, context: Context) -> Any:
    """Run the GEMMs of a call one after the other, in one workspace."""
    packings: dict[str, Packing] = {}
    made = [_product(product, call, context, packings) for product in gemms_of(call)]
    steps = [step for step, _ in made]
    packed = {slot: packing.form() for slot, packing in packings.items()}

    def run(context: Context, io: IO) -> None:
        for step in steps:
            step(context, io)

    return Prepared(run, max((need for _, need in made), default=0), packed=packed)


def _product(product: Gemm, call: Call, context: Context, packings: dict[str, Packing]) -> tuple[Step, int]:
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
        zeros = filler(context, stored, 0.0)
        return (lambda context, io: zeros(context, io.span(out), size)), 0
    need = 0
    convert_a, a_start = None, 0
    if stored != dtype:
        convert_a, need = _flat(context, stored, dtype, prod(product.a_dims)), _room(product.a_dims, dtype)
    prepare_b, b_start = None, need
    if product.b_transposed and n > 1 and k > 1:
        prepare_b = _transposer(context, stored, dtype, product.b_dims)
    elif stored != dtype:
        prepare_b = _flat(context, stored, dtype, prod(product.b_dims))
    if prepare_b is not None:
        need += _room(product.b_dims, dtype)
    a_at = _packed(packings, a, convert_a, product.a_dims, dtype, "flat")
    b_at = _packed(packings, b, prepare_b, product.b_dims, dtype, ("flat", "turned")[product.b_transposed])
    kept, summed = _batches(product)
    columns = columns_for(n, dtype)
    kernel = gemm(context, dtype, stored, columns, len(kept), len(summed), epilogue)
    updates = call.epilogue is not None and bool(call.op.must_alias)
    guard = gemm(context, dtype, stored, columns, len(kept), len(summed), epilogue, True) if updates else kernel
    a_steps = (1, m) if product.a_transposed else (k, 1)
    numbers = (m, n, k, *a_steps, n, product.alpha, *sum(kept, ()), *sum(summed, ()))
    slots = [out]
    if epilogue is not None:
        numbers += tuple(value for _, _, value in epilogue.numbers)
        slots = [slot for *_, slot in epilogue.buffers]
    items = tiles(m, n, dtype, [axis[0] for axis in kept])

    def step(context: Context, io: IO) -> None:
        if not need:
            left, right = io.span(a), io.span(b)
        else:
            assert io.workspace is not None
            scratch: Span = io.workspace.span()
            left = _form(context, io, a, convert_a, part(scratch, a_start), a_at)
            right = _form(context, io, b, prepare_b, part(scratch, b_start), b_at)
        spans = [left, right, *map(io.span, slots)]
        if updates and getattr(context, "suspect", True):  # what is written may be state
            guard(context, items, [*spans, context.status_span()], numbers, HEAVY)
        else:
            kernel(context, items, spans, numbers, HEAVY)

    return step, need


def _packed(
    packings: dict[str, Packing], slot: str, make: Mover | None, dims: tuple[int, ...], dtype: str, form: str
) -> int:
    """Note that an operand would rather be found as ``make`` makes it; return where it then lies in its form."""
    if make is None:
        return 0
    return packings.setdefault(slot, Packing()).add(_room(dims, dtype), (form, dims, dtype), make)


def _form(context: Context, io: IO, slot: str, make: Mover | None, scratch: Span, kept_at: int) -> Span:
    """Return an operand as the product reads it: as it lies, kept from an earlier run, or made now."""
    if make is None:
        return io.span(slot)
    kept = io.packed(slot)
    if kept is not None:
        return part(kept, kept_at)
    make(context, io.span(slot), scratch)
    return scratch


def _room(dims: tuple[int, ...], dtype: str) -> int:
    return -(-prod(dims) * ITEMSIZE[dtype] // _ALIGN) * _ALIGN


def _flat(context: Context, stored: str, dtype: str, size: int) -> Mover:
    return mover(context, stored, dtype, (size,), (1,), (1,))


def _transposer(context: Context, stored: str, dtype: str, dims: tuple[int, ...]) -> Mover:
    count, rows, columns = prod(dims[:-2]), dims[-2], dims[-1]
    size = rows * columns
    return mover(context, stored, dtype, (count, columns, rows), (size, 1, columns), (size, rows, 1))


def _batches(product: Gemm) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Return (size, step in A, step in B) of the batch axes: those that are kept, neighbours joined, and summed."""
    axes = []
    rank = len(product.batch)
    for dims in (product.a_dims, product.b_dims):
        padded = (1,) * (rank + 2 - len(dims)) + dims
        axes.append([0 if size == 1 else step for size, step in zip(padded, steps_of(padded), strict=True)][:rank])
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


@register_kernel(
    "matmul", "language", supports=_supports, options=KernelOptions(predicated=True, epilogue=True), inplace=True
)
def matmul(call: Call, context: Context) -> Any:
    """Out = alpha * op(X) @ op(Y)."""
    return _products(call, context)


@register_kernel("matmul_grad", "language")
def matmul_grad(call: Call, context: Context) -> Any:
    """X@GRAD = alpha * Out@GRAD @ op(Y)^T, Y@GRAD = alpha * op(X)^T @ Out@GRAD."""
    return _products(call, context)


@register_kernel(
    "mul", "language", supports=_supports, options=KernelOptions(predicated=True, epilogue=True), inplace=True
)
def mul(call: Call, context: Context) -> Any:
    """Out = X @ Y, both flattened to matrices."""
    return _products(call, context)


@register_kernel("mul_grad", "language")
def mul_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD @ Y^T, Y@GRAD = X^T @ Out@GRAD."""
    return _products(call, context)
