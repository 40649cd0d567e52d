"""matmul, mul and their gradients by cuBLAS: one strided batched GEMM for each product."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import Gemm, gemms_of
from fluidlite.plugin import IO, Call, Context, Prepared, register_kernel

from .gemm import CUDA_DATA_TYPES, INT32_LIMIT, BatchedGemm, MatrixLayout, address, cublas


def supports(call: Call) -> str | None:
    """Return why cuBLAS cannot compute a call, or None: it is missing, or the products are no strided batch."""
    library = cublas()
    if isinstance(library, str):
        return library
    if call.epilogue is not None:
        return "epilogues are computed by others"
    for gemm in gemms_of(call) if call.is_static else ():
        if not gemm.k or not prod(gemm.out_dims):
            return "a product of nothing"
        if not (np.float64 if call.key_dtype == "float64" else np.float32)(gemm.alpha):
            return "a factor of 0, for which BLAS does not read operands, and NaN in them"
        if gemm.strided() is None:
            return "matrices that lie at no equal steps, or a sum over them"
        if max(gemm.m, gemm.n, gemm.k, prod(gemm.batch)) >= INT32_LIMIT:
            return f"cuBLAS counts to {INT32_LIMIT:,}"
    return None


def _product(gemm: Gemm, dtype: str) -> BatchedGemm:
    a, b, out = gemm.strided() or (0, 0, 0)
    return BatchedGemm(
        dtype,
        (gemm.m, gemm.n, gemm.k),
        MatrixLayout(gemm.a_dims[-1], a * prod(gemm.a_dims[-2:]), gemm.a_transposed),
        MatrixLayout(gemm.b_dims[-1], b * prod(gemm.b_dims[-2:]), gemm.b_transposed),
        MatrixLayout(gemm.n, out * gemm.m * gemm.n),
        prod(gemm.batch),
        gemm.alpha,
    )


def _products(call: Call, context: Context) -> Any:
    products = [((gemm.a, gemm.b, gemm.out), _product(gemm, str(call.key_dtype))) for gemm in gemms_of(call)]

    def run(context: Context, io: IO) -> None:
        for slots, multiply in products:
            a, b, out = (address(io.span(slot)) for slot in slots)
            multiply(context, a, b, out)

    return Prepared(run)


def _registered(op: str) -> Any:
    return register_kernel(op, "cuda", library="cublas", dtypes=tuple(CUDA_DATA_TYPES), supports=supports)(_products)


matmul, matmul_grad = _registered("matmul"), _registered("matmul_grad")
mul, mul_grad = _registered("mul"), _registered("mul_grad")
