"""matmul, mul and their gradients by cblas: one GEMM a matrix or a batch, which also applies alpha and sums batches.

An epilogue that adds the product to a tensor becomes the beta of cblas.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import ITEMSIZE, Accumulation, Gemm, Kernel, accumulation, gemms_of
from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, register_kernel

from .batches import Batch, batch_strides, batched
from .cblas import FLOATS, Product, cblas_routine, unsuitable

_MAX_LOOPED_MATRICES = 64  # matrices of a batch; above it, NumPy's own loop over a batch is faster than one in Python


def _supports(call: Call) -> str | None:
    dtype = str(call.key_dtype)
    reason = unsuitable(dtype)
    if reason is not None:
        return reason
    if call.is_static:
        gemms, number, looped = gemms_of(call), np.dtype(dtype).type, batched(dtype) is None
        for gemm in gemms:
            if not number(gemm.alpha):  # as BLAS gets it
                return "a factor of 0, for which BLAS does not read operands, and NaN in them"
        largest = max([prod(gemm.batch) for gemm in gemms if looped or batch_strides(gemm) is None], default=0)
        if largest > _MAX_LOOPED_MATRICES:
            return f"a batch of {largest} matrices; above {_MAX_LOOPED_MATRICES} NumPy's own loop is faster"
    if call.epilogue is not None:
        epilogue = accumulation(call)
        if isinstance(epilogue, str):
            return epilogue
        if call.is_static and not all(gemm.m and gemm.n and gemm.k for gemm in gemms_of(call)):
            return "a product of nothing"
    return None


class _GemmStep:
    """One GEMM of the operator: calls of cblas at constant offsets from the slots' addresses."""

    def __init__(self, gemm: Gemm, dtype: str, addend: Accumulation | None = None) -> None:
        self.slots = gemm.a, gemm.b, addend.out if addend is not None else gemm.out
        self.addend = addend
        size = ITEMSIZE[dtype]
        self.out_nbytes = prod(gemm.out_dims) * size
        self.offsets: list[tuple[int, int, int, bool]] = []
        self.product: Product | None = None
        self.batch: Batch | None = None
        routine = cblas_routine(dtype)
        if routine is None or not (gemm.m and gemm.n and gemm.k):
            return
        a_nbytes, b_nbytes = size * prod(gemm.a_dims[-2:]), size * prod(gemm.b_dims[-2:])
        out_nbytes = size * gemm.m * gemm.n
        self.offsets = [(a * a_nbytes, b * b_nbytes, out * out_nbytes, add) for a, b, out, add in gemm.matrices()]
        alpha, beta = (gemm.alpha, 0.0) if addend is None else (gemm.alpha * addend.factor, addend.scale)
        self.product = Product(
            routine,
            gemm.m,
            gemm.n,
            gemm.k,
            gemm.a_dims[-1],
            gemm.a_transposed,
            gemm.b_dims[-1],
            gemm.b_transposed,
            alpha,
            beta,
        )
        steps, batched_gemm = batch_strides(gemm), batched(dtype)
        if steps is not None and batched_gemm is not None:
            strides = steps[0] * prod(gemm.a_dims[-2:]), steps[1] * prod(gemm.b_dims[-2:]), steps[2] * gemm.m * gemm.n
            self.batch = Batch(batched_gemm, routine, gemm, strides, len(self.offsets), alpha, beta)

    def addend_copy(self, io: IO) -> tuple[int, int, int] | None:
        """Return (target, source, bytes) of the copy of the addend into the output; None if they share memory."""
        if self.addend is None:
            return None
        source, target = io.address(self.addend.slot), io.address(self.addend.out)
        return (target, source, self.out_nbytes) if source != target else None

    def bind(self, context: Context, io: IO) -> list[Callable[[], Any]]:
        """Return the calls for buffers whose addresses do not change."""
        a, b, out = map(io.address, self.slots)
        if self.product is None or not self.offsets:  # a contraction over no elements
            nbytes = self.out_nbytes
            return [lambda: ctypes.memset(out, 0, nbytes)]
        calls: list[Callable[[], Any]]
        if self.batch is not None:
            calls = [self.batch.bind(a, b, out)]
        else:
            calls = [self.product.bind(a + x, b + y, out + z, add) for x, y, z, add in self.offsets]
        copy_arguments = self.addend_copy(io)
        return calls if copy_arguments is None else [partial(ctypes.memmove, *copy_arguments), *calls]

    def record(self, recorder: Any, io: IO) -> bool:
        """Record the calls for buffers whose addresses do not change; return False if one cannot be a native call."""
        if self.product is None or not self.offsets or self.batch is not None or self.addend_copy(io) is not None:
            return False
        a, b, out = map(io.address, self.slots)
        return all([self.product.record(recorder, a + x, b + y, out + z, add) for x, y, z, add in self.offsets])


def _products(call: Call, context: Context) -> Any:
    addend = accumulation(call) if call.epilogue is not None else None
    assert not isinstance(addend, str)  # _supports refused it
    steps = [_GemmStep(gemm, str(call.key_dtype), addend) for gemm in gemms_of(call)]

    def run(context: Context, io: IO) -> None:
        for step in steps:
            for bound_call in step.bind(context, io):
                bound_call()

    if addend is None and len(steps) == 1 and steps[0].product is not None and len(steps[0].offsets) == 1:
        product, (a, b, out) = steps[0].product, steps[0].slots

        def run(context: Context, io: IO) -> None:
            product(io.address(a), io.address(b), io.address(out), False)

    def bind(context: Context, io: IO) -> Callable[[], Any]:
        calls = [bound_call for step in steps for bound_call in step.bind(context, io)]
        if len(calls) == 1:
            return calls[0]

        def run_bound() -> None:
            for bound_call in calls:
                bound_call()

        return run_bound

    def record(recorder: Any, io: IO) -> bool:
        return all([step.record(recorder, io) for step in steps])

    return Prepared(run, bind=bind, record=record)


def _registered(op: str, adds: bool) -> Kernel:
    """Register the kernel of an operator; ``adds``: it takes an epilogue that adds."""
    options = KernelOptions(epilogue=adds)
    return register_kernel(op, "cpu", library="blas", dtypes=FLOATS, supports=_supports, inplace=adds, options=options)(
        _products
    )


matmul, matmul_grad = _registered("matmul", True), _registered("matmul_grad", False)
mul, mul_grad = _registered("mul", True), _registered("mul_grad", False)
