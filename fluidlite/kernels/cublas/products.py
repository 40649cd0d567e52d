"""matmul, mul and their gradients by cuBLAS: a call for each product, whose batch lies at equal steps.

cuBLAS counts columns first, so that it is given the transposed product, op(B)^T op(A)^T. Sums are float32's, those of
float64 its own.
"""

from __future__ import annotations

import importlib
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import Gemm, gemms_of
from fluidlite.plugin import IO, Call, Context, Prepared, Span, register_kernel

_REALS = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""``cudaDataType``."""
_COMPUTE_32F, _COMPUTE_64F = 68, 70
"""``cublasComputeType_t``."""
_PLAIN, _TRANSPOSED = 0, 1
_DEFAULT = -1
"""``cublasGemmAlgo_t``: cuBLAS chooses."""
_LONGEST = 1 << 31
"""cuBLAS counts in int32."""


def _cublas() -> Any:
    """CuPy's cuBLAS, or why there is none."""
    try:
        return importlib.import_module("cupy_backends.cuda.libs.cublas")
    except ImportError as exc:
        return f"CuPy has no cuBLAS here ({exc})"


def supports(call: Call) -> str | None:
    """Why cuBLAS does not do it: it is not there, or it has no call for the products."""
    found = _cublas()
    if isinstance(found, str):
        return found
    if call.epilogue is not None:
        return "epilogues are computed by others"
    for gemm in gemms_of(call) if call.known else ():
        if not gemm.k or not prod(gemm.out_dims):
            return "a product of nothing"
        if gemm.strided() is None:
            return "matrices that lie at no equal steps, or a sum over them"
        if max(gemm.m, gemm.n, gemm.k, prod(gemm.batch)) >= _LONGEST:
            return f"cuBLAS counts to {_LONGEST:,}"
    return None


class _Product:
    """One GEMM of an operator: a call of cuBLAS."""

    def __init__(self, gemm: Gemm, dtype: str) -> None:
        self.slots, kind = (gemm.a, gemm.b, gemm.out), _REALS[dtype]
        compute, wide = (_COMPUTE_64F, np.float64) if dtype == "float64" else (_COMPUTE_32F, np.float32)
        self.numbers = np.array([gemm.alpha, 0.0], wide)
        alpha, self.beta = (self.numbers.ctypes.data + i * self.numbers.itemsize for i in range(2))
        a, b, out = gemm.strided() or (0, 0, 0)
        turned = [_TRANSPOSED if each else _PLAIN for each in (gemm.b_transposed, gemm.a_transposed)]
        self.head = (*turned, gemm.n, gemm.m, gemm.k, alpha)
        self.a = kind, gemm.a_dims[-1], a * prod(gemm.a_dims[-2:])
        self.b = kind, gemm.b_dims[-1], b * prod(gemm.b_dims[-2:])
        self.out = kind, gemm.n, out * gemm.m * gemm.n
        self.tail = prod(gemm.batch), compute, _DEFAULT

    def multiply(self, cublas: Any, handle: int, spans: list[Span]) -> None:
        """Enqueue the call on the current stream."""
        a, b, out = (int(span.handle.ptr) + span.offset for span in spans)
        cublas.gemmStridedBatchedEx(handle, *self.head, b, *self.b, a, *self.a, self.beta, out, *self.out, *self.tail)


def _products(call: Call, context: Context) -> Any:
    products = [_Product(gemm, str(call.key_dtype)) for gemm in gemms_of(call)]

    def run(context: Context, io: IO) -> None:
        raw = context.raw
        with raw.activate():
            handle = raw.cupy.cuda.Device(raw.place.index).cublas_handle
            for product in products:
                product.multiply(_cublas(), handle, [io.span(slot) for slot in product.slots])

    return Prepared(run)


def _registered(op: str) -> Any:
    return register_kernel(op, "cuda", library="cublas", dtypes=tuple(_REALS), supports=supports)(_products)


matmul, matmul_grad = _registered("matmul"), _registered("matmul_grad")
mul, mul_grad = _registered("mul"), _registered("mul_grad")
