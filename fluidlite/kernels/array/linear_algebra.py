"""matmul, mul and their gradients: each is one or two GEMMs, whose geometry ``gemms_of`` works out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.plugin import IO, Call, Context, Gemm, gemms_of, register_kernel

from .common import is_half, numpy_style, storer, widener


def _products(call: Call, context: Context) -> Callable[[Context, IO], None]:
    steps = [_product(gemm, call, context) for gemm in gemms_of(call)]
    if len(steps) == 1:
        return steps[0]

    def run(context: Context, io: IO) -> None:
        for step in steps:
            step(context, io)

    return run


def _product(gemm: Gemm, call: Call, context: Context) -> Callable[[Context, IO], None]:
    half = is_half(call.dtype(gemm.out))
    left = _operand(call, context, gemm.a, gemm.a_dims, gemm.a_transposed)
    right = _operand(call, context, gemm.b, gemm.b_dims, gemm.b_transposed)
    matmul, name, alpha, summed = context.xp.matmul, gemm.out, gemm.alpha, gemm.summed
    if numpy_style(context) and not half and not summed:
        dims = gemm.out_dims
        multiply = context.xp.multiply

        def run_into(context: Context, io: IO) -> None:
            out = io.array(name)
            if out.shape != dims:
                out = out.reshape(dims)
            matmul(left(io), right(io), out)
            if alpha != 1.0:
                multiply(out, alpha, out)

        return run_into

    store, total = storer(context), context.xp.sum

    def run(context: Context, io: IO) -> None:
        value = matmul(left(io), right(io))
        if summed:
            value = total(value, axis=summed)
        store(io.array(name), value if alpha == 1.0 else value * alpha)

    return run


def _operand(call: Call, context: Context, slot: str, dims: tuple[int, ...], transposed: bool) -> Callable[[IO], Any]:
    """Return the function that views a slot as the matrices of a GEMM; a transpose copies nothing."""
    widen, xp = widener(call.dtype(slot), context), context.xp
    reshaped, flat, half = call.dims(slot) != dims, len(dims) == 2, is_half(call.dtype(slot))

    def operand(io: IO) -> Any:
        array = io.array(slot)
        if half:
            array = widen(array)
        if reshaped:
            array = xp.reshape(array, dims)
        if transposed:
            return array.T if flat else xp.matrix_transpose(array)
        return array

    return operand


@register_kernel("matmul", "array", vendor=True)
def matmul(call: Call, context: Context) -> Any:
    """Out = alpha * op(X) @ op(Y)."""
    return _products(call, context)


@register_kernel("matmul_grad", "array", vendor=True)
def matmul_grad(call: Call, context: Context) -> Any:
    """X@GRAD = alpha * Out@GRAD @ op(Y)^T, Y@GRAD = alpha * op(X)^T @ Out@GRAD."""
    return _products(call, context)


@register_kernel("mul", "array", vendor=True)
def mul(call: Call, context: Context) -> Any:
    """Out = X @ Y, both flattened to matrices."""
    return _products(call, context)


@register_kernel("mul_grad", "array", vendor=True)
def mul_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD @ Y^T, Y@GRAD = X^T @ Out@GRAD."""
    return _products(call, context)
