"""Calls of cuBLAS on row-major matrices.

cuBLAS counts columns first, so that it is given the transposed product, op(B)^T op(A)^T. Sums are float32's, those of
float64 its own.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from fluidlite.plugin import Context, Span

REALS = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""``cudaDataType``."""
LONGEST = 1 << 31
"""cuBLAS counts in int32."""
_COMPUTE_32F, _COMPUTE_64F = 68, 70
"""``cublasComputeType_t``."""
_PLAIN, _TRANSPOSED = 0, 1
_DEFAULT = -1
"""``cublasGemmAlgo_t``: cuBLAS chooses."""


def cublas() -> Any:
    """CuPy's cuBLAS, or the text why there is none."""
    try:
        return importlib.import_module("cupy_backends.cuda.libs.cublas")
    except ImportError as exc:
        return f"CuPy has no cuBLAS here ({exc})"


def address(span: Span) -> int:
    """Where a span begins."""
    return int(span.handle.ptr) + span.offset


class Matrices(NamedTuple):
    """How an operand lies: elements from row to row and from matrix to matrix, and whether matrices are transposed."""

    row: int
    step: int = 0
    transposed: bool = False


class Multiply:
    """``out = alpha * op(a) @ op(b)`` for ``count`` matrices, or that added to what is there.

    ``dtype``: of a and b.
    ``dims``: rows and columns of a product, and the length of its sums.
    ``made``: the dtype of the products, if it is another.
    """

    def __init__(
        self,
        dtype: str,
        dims: tuple[int, int, int],
        a: Matrices,
        b: Matrices,
        out: Matrices,
        count: int = 1,
        alpha: float = 1.0,
        made: str = "",
    ) -> None:
        compute, wide = (_COMPUTE_64F, np.float64) if dtype == "float64" else (_COMPUTE_32F, np.float32)
        self._numbers = np.array([alpha, 0.0, 1.0], wide)
        self._alpha, *self._beta = (self._numbers.ctypes.data + i * self._numbers.itemsize for i in range(3))
        m, n, k = dims
        self._head = *(_TRANSPOSED if each.transposed else _PLAIN for each in (b, a)), n, m, k, self._alpha
        self._a, self._b = ((REALS[dtype], each.row, each.step) for each in (a, b))
        self._out = REALS[made or dtype], out.row, out.step
        self._tail = count, compute, _DEFAULT

    def __call__(self, context: Context, a: int, b: int, out: int, add: bool = False) -> None:
        """Enqueue the call on the context's stream; operands are addresses."""
        raw, beta = context.raw, self._beta[add]
        with raw.activate():
            handle = raw.cupy.cuda.Device(raw.place.index).cublas_handle
            cublas().gemmStridedBatchedEx(
                handle, *self._head, b, *self._b, a, *self._a, beta, out, *self._out, *self._tail
            )
