"""matmul, mul and their gradients: one cblas call a matrix, or a batch, with alpha and the sums over batches in it.

The products take an epilogue that adds to what is there: cblas's beta.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE, Accumulation, Gemm, Kernel, accumulation, gemms_of
from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, register_kernel

from .batches import Batch, batched, steps_of
from .cblas import FLOATS, Product, find, unsuitable

_MOST = 64  # matrices; beyond, NumPy's own loop over a batch beats one in Python


def _supports(call: Call) -> str | None:
    dtype = str(call.key_dtype)
    reason = unsuitable(dtype)
    if reason is not None:
        return reason
    if call.known:
        one_by_one = batched(dtype) is None
        most = max([prod(gemm.batch) for gemm in gemms_of(call) if one_by_one or steps_of(gemm) is None], default=0)
        if most > _MOST:
            return f"a batch of {most} matrices; above {_MOST} NumPy's own loop is faster"
    if call.epilogue is not None:
        found = accumulation(call)
        if isinstance(found, str):
            return found
        if call.known and not all(gemm.m and gemm.n and gemm.k for gemm in gemms_of(call)):
            return "a product of nothing"
    return None


class _Step:
    """One GEMM of the operator: calls of cblas at fixed offsets from the slots' addresses."""

    def __init__(self, gemm: Gemm, dtype: str, added: Accumulation | None = None) -> None:
        self.slots = gemm.a, gemm.b, added.out if added is not None else gemm.out
        self.added = added
        size = ITEMSIZE[dtype]
        self.out_nbytes = prod(gemm.out_dims) * size
        self.offsets: list[tuple[int, int, int, bool]] = []
        self.product: Product | None = None
        self.batch: Batch | None = None
        routine = find(dtype)
        if routine is None or not (gemm.m and gemm.n and gemm.k):
            return
        a_nbytes, b_nbytes = size * prod(gemm.a_dims[-2:]), size * prod(gemm.b_dims[-2:])
        out_nbytes = size * gemm.m * gemm.n
        self.offsets = [(a * a_nbytes, b * b_nbytes, out * out_nbytes, add) for a, b, out, add in gemm.matrices()]
        alpha, beta = (gemm.alpha, 0.0) if added is None else (gemm.alpha * added.factor, added.scale)
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
        steps, found = steps_of(gemm), batched(dtype)
        if steps is not None and found is not None:
            apart = steps[0] * prod(gemm.a_dims[-2:]), steps[1] * prod(gemm.b_dims[-2:]), steps[2] * gemm.m * gemm.n
            self.batch = Batch(found, routine, gemm, apart, len(self.offsets), alpha, beta)

    def begin(self, io: IO) -> tuple[int, int, int] | None:
        """Where to copy what is added to, and how much; None if it lies there already."""
        if self.added is None:
            return None
        source, target = io.address(self.added.slot), io.address(self.added.out)
        return (target, source, self.out_nbytes) if source != target else None

    def bind(self, context: Context, io: IO) -> list[Callable[[], Any]]:
        """Return the calls for buffers that stay."""
        a, b, out = map(io.address, self.slots)
        if self.product is None or not self.offsets:  # a contraction of nothing
            nbytes = self.out_nbytes
            return [lambda: ctypes.memset(out, 0, nbytes)]
        calls: list[Callable[[], Any]]
        if self.batch is not None:
            calls = [self.batch.bind(a, b, out)]
        else:
            calls = [self.product.bind(a + x, b + y, out + z, add) for x, y, z, add in self.offsets]
        copied = self.begin(io)
        return calls if copied is None else [partial(ctypes.memmove, *copied), *calls]

    def record(self, recorder: Any, io: IO) -> bool:
        """Note the calls for buffers that stay, if each may be made from native code."""
        if self.product is None or not self.offsets or self.batch is not None or self.begin(io) is not None:
            return False
        a, b, out = map(io.address, self.slots)
        return all([self.product.record(recorder, a + x, b + y, out + z, add) for x, y, z, add in self.offsets])


def _products(call: Call, context: Context) -> Any:
    added = accumulation(call) if call.epilogue is not None else None
    assert not isinstance(added, str)  # _supports has seen to it
    steps = [_Step(gemm, str(call.key_dtype), added) for gemm in gemms_of(call)]

    def run(context: Context, io: IO) -> None:
        for step in steps:
            for bound in step.bind(context, io):
                bound()

    if added is None and len(steps) == 1 and steps[0].product is not None and len(steps[0].offsets) == 1:
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

    def record(recorder: Any, io: IO) -> bool:
        return all([step.record(recorder, io) for step in steps])

    return Prepared(run, bind=bind, record=record)


def _registered(op: str, adds: bool) -> Kernel:
    """A kernel of products; ``adds`` says that they are added to what is there."""
    options = KernelOptions(epilogue=adds)
    return register_kernel(op, "cpu", library="blas", dtypes=FLOATS, supports=_supports, inplace=adds, options=options)(
        _products
    )


matmul, matmul_grad = _registered("matmul", True), _registered("matmul_grad", False)
mul, mul_grad = _registered("mul", True), _registered("mul_grad", False)
