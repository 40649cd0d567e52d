"""matmul, mul and their gradients: one cblas call a matrix, with alpha and the sums over batches in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, Gemm, gemms_of, register_kernel

from .cblas import Product, find

FLOATS = ("float32", "float64")
_MOST = 64  # matrices; beyond, NumPy's own loop over a batch beats one in Python


def _supports(call: Call) -> str | None:
    dtype = call.key_dtype
    if dtype not in FLOATS:
        return f"{dtype}; cblas has float32 and float64"
    if find(dtype) is None:
        return "this build of NumPy shows no cblas"
    if call.known:
        most = max((prod(gemm.batch) for gemm in gemms_of(call)), default=0)
        if most > _MOST:
            return f"a batch of {most} matrices; above {_MOST} NumPy's own loop is faster"
    return None


class _Step:
    """One GEMM of the operator: calls of cblas at fixed offsets from the slots' addresses."""

    def __init__(self, gemm: Gemm, dtype: str) -> None:
        self.slots = gemm.a, gemm.b, gemm.out
        size = ITEMSIZE[dtype]
        self.out_nbytes = prod(gemm.out_dims) * size
        self.offsets: list[tuple[int, int, int, bool]] = []
        self.product: Product | None = None
        routine = find(dtype)
        if routine is None or not (gemm.m and gemm.n and gemm.k):
            return
        a_nbytes, b_nbytes = size * prod(gemm.a_dims[-2:]), size * prod(gemm.b_dims[-2:])
        out_nbytes = size * gemm.m * gemm.n
        self.offsets = [(a * a_nbytes, b * b_nbytes, out * out_nbytes, add) for a, b, out, add in gemm.matrices()]
        self.product = Product(
            routine, gemm.m, gemm.n, gemm.k, gemm.a_dims[-1], gemm.a_transposed, gemm.b_dims[-1], gemm.b_transposed,
            gemm.alpha,
        )  # fmt: skip

    def run(self, context: Context, io: IO) -> None:
        """Multiply."""
        a, b, out = map(io.address, self.slots)
        if self.product is None or not self.offsets:  # a contraction of nothing
            ctypes.memset(out, 0, self.out_nbytes)
            return
        for a_offset, b_offset, out_offset, add in self.offsets:
            self.product(a + a_offset, b + b_offset, out + out_offset, add)

    def bind(self, context: Context, io: IO) -> list[Callable[[], Any]]:
        """Return the calls for buffers that stay."""
        a, b, out = map(io.address, self.slots)
        if self.product is None or not self.offsets:
            nbytes = self.out_nbytes
            return [lambda: ctypes.memset(out, 0, nbytes)]
        return [self.product.bind(a + x, b + y, out + z, add) for x, y, z, add in self.offsets]


def _products(call: Call, context: Context) -> Any:
    steps = [_Step(gemm, call.dtype(gemm.out)) for gemm in gemms_of(call)]

    def run(context: Context, io: IO) -> None:
        for step in steps:
            step.run(context, io)

    if len(steps) == 1 and steps[0].product is not None and len(steps[0].offsets) == 1:
        product, (a, b, out) = steps[0].product, steps[0].slots

        def run(context: Context, io: IO) -> None:
            product(io.address(a), io.address(b), io.address(out), False)

    def bind(context: Context, io: IO) -> Callable[[], Any]:
        calls = [bound for step in steps for bound in step.bind(context, io)]
        if len(calls) == 1:
            return calls[0]

        def run_bound() -> None:
            for bound in calls:
                bound()

        return run_bound

    run.bind = bind  # type: ignore[attr-defined]
    return run


@register_kernel("matmul", "cpu", library="blas", dtypes=FLOATS, supports=_supports)
def matmul(call: Call, context: Context) -> Any:
    """Out = alpha * op(X) @ op(Y)."""
    return _products(call, context)


@register_kernel("matmul_grad", "cpu", library="blas", dtypes=FLOATS, supports=_supports)
def matmul_grad(call: Call, context: Context) -> Any:
    """X@GRAD = alpha * Out@GRAD @ op(Y)^T, Y@GRAD = alpha * op(X)^T @ Out@GRAD."""
    return _products(call, context)


@register_kernel("mul", "cpu", library="blas", dtypes=FLOATS, supports=_supports)
def mul(call: Call, context: Context) -> Any:
    """Out = X @ Y, both flattened to matrices."""
    return _products(call, context)


@register_kernel("mul_grad", "cpu", library="blas", dtypes=FLOATS, supports=_supports)
def mul_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD @ Y^T, Y@GRAD = X^T @ Out@GRAD."""
    return _products(call, context)
