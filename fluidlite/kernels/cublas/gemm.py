"""cuBLAS GEMMs on row-major matrices.

cuBLAS is column-major, so it computes the transposed product, op(B)^T op(A)^T. Sums are in float32, for float64
operands in float64.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from fluidlite.plugin import Context, Span

CUDA_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""Supported dtypes, with their ``cudaDataType``."""
INT32_LIMIT = 1 << 31
"""Upper bound of dims and counts, exclusive: cuBLAS takes them as int32."""
_COMPUTE_32F, _COMPUTE_64F = 68, 70
"""``cublasComputeType_t``."""
_PLAIN, _TRANSPOSED = 0, 1  # cublasOperation_t
_DEFAULT = -1
"""``cublasGemmAlgo_t``: cuBLAS chooses."""


def cublas() -> Any:
    """Return CuPy's cuBLAS module, or the reason why it is missing."""
    try:
        return importlib.import_module("cupy_backends.cuda.libs.cublas")
    except ImportError as exc:
        return f"CuPy has no cuBLAS here ({exc})"


def address(span: Span) -> int:
    """Return the address of a span."""
    return int(span.handle.ptr) + span.offset


class MatrixLayout(NamedTuple):
    """The layout of an operand: strides of rows and of matrices in elements, and whether matrices are transposed."""

    row: int
    step: int = 0
    transposed: bool = False


class BatchedGemm:
    """``out = alpha * op(a) @ op(b)`` or ``out += alpha * op(a) @ op(b)`` for ``count`` matrices.

    ``dtype``: the dtype of a and b.
    ``dims``: rows and columns of a product, and the length of the contraction.
    ``out_dtype``: the dtype of out; empty for ``dtype``.
    """

    def __init__(
        self,
        dtype: str,
        dims: tuple[int, int, int],
        a: MatrixLayout,
        b: MatrixLayout,
        out: MatrixLayout,
        count: int = 1,
        alpha: float = 1.0,
        out_dtype: str = "",
    ) -> None:
        compute, wide = (_COMPUTE_64F, np.float64) if dtype == "float64" else (_COMPUTE_32F, np.float32)
        self._numbers = np.array([alpha, 0.0, 1.0], wide)
        self._alpha, *self._beta = (self._numbers.ctypes.data + i * self._numbers.itemsize for i in range(3))
        m, n, k = dims
        self._head = *(_TRANSPOSED if layout.transposed else _PLAIN for layout in (b, a)), n, m, k, self._alpha
        self._a, self._b = ((CUDA_DATA_TYPES[dtype], layout.row, layout.step) for layout in (a, b))
        self._out = CUDA_DATA_TYPES[out_dtype or dtype], out.row, out.step
        self._tail = count, compute, _DEFAULT

    def __call__(self, context: Context, a: int, b: int, out: int, add: bool = False) -> None:
        """Enqueue the call on the context's stream; operands are addresses."""
        raw, beta = context.raw, self._beta[add]
        with raw.activate():
            handle = raw.cupy.cuda.Device(raw.place.index).cublas_handle
            cublas().gemmStridedBatchedEx(
                handle, *self._head, b, *self._b, a, *self._a, beta, out, *self._out, *self._tail
            )
