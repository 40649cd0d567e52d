"""Strided batched GEMM in one call of ``cblas_?gemm_batch_strided``, which OpenBLAS has from 0.3.29.

Each thread multiplies whole matrices, so threads synchronize once a call, not once a matrix.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import Gemm

from .cblas import PLAIN, ROW_MAJOR, TRANSPOSED, Routine, cblas_routine, library

MAX_UNBATCHED_MULTIPLIES = 100**3
"""Multiply-adds a matrix up to which matrices are multiplied one by one. Builds of OpenBLAS for several processors
crash in its kernels for small matrices (fixed in 2026); on x86 these kernels take no larger matrices."""


@cache
def batched(dtype: str) -> Any:
    """Return the routine for float32 or float64, or None if it is missing or fails the check of its results."""
    routine = cblas_routine(dtype)
    if routine is None or platform.machine() not in ("x86_64", "AMD64"):
        return None
    function = getattr(library(), f"cblas_{'s' if dtype == 'float32' else 'd'}gemm_batch_strided", None)
    if function is None:
        return None
    function.restype = None
    return function if _is_right(function, routine, dtype) else None


def _is_right(function: Any, routine: Routine, dtype: str) -> bool:
    """Multiply two pairs of matrices and compare: arguments of a wrong integer size give a wrong result."""
    side = 101
    a = (np.arange(2 * side * side, dtype=dtype) % 7).reshape(2, side, side)
    out = np.full_like(a, np.nan)
    step = side * side
    gemm = Gemm("", a.shape, True, "", a.shape, False, "", side, side, side, (2,), (), 1.0)
    Batch(function, routine, gemm, (step, step, step), 2, 1.0).bind(a.ctypes.data, a.ctypes.data, out.ctypes.data)()
    return bool((out == a.transpose(0, 2, 1) @ a).all())


def batch_strides(gemm: Gemm) -> tuple[int, int, int] | None:
    """Return the batch strides of a, b and out, counted in matrices; None if one call cannot multiply the batch."""
    if prod(gemm.batch) < 2 or gemm.m * gemm.n * gemm.k <= MAX_UNBATCHED_MULTIPLIES or 1 in (gemm.m, gemm.n):
        return None
    return gemm.strided()


class Batch:
    """``out = alpha * op(a) @ op(b) + beta * out`` for ``count`` matrices.

    ``function``: the function of the library.
    ``routine``: its ``integer`` and ``number`` are the types of the arguments.
    ``steps``: elements from each matrix of a, b and out to the next.
    """

    def __init__(
        self,
        function: Any,
        routine: Routine,
        gemm: Gemm,
        steps: tuple[int, int, int],
        count: int,
        alpha: float,
        beta: float = 0.0,
    ) -> None:
        integer, number = routine.integer, routine.number
        flags = [ctypes.c_int(TRANSPOSED if flag else PLAIN) for flag in (gemm.a_transposed, gemm.b_transposed)]
        sizes = map(integer, (gemm.m, gemm.n, gemm.k))
        self._call = partial(function, ctypes.c_int(ROW_MAJOR), *flags, *sizes, number(alpha))
        columns = gemm.a_dims[-1], gemm.b_dims[-1], gemm.n
        self._a, self._b, self._out = (
            (integer(width), integer(step)) for width, step in zip(columns, steps, strict=True)
        )
        self._beta, self._count = number(beta), integer(count)

    def bind(self, a: int, b: int, out: int) -> Callable[[], None]:
        """Return the call for matrices that begin at these addresses."""
        address = ctypes.c_void_p
        return partial(
            self._call, address(a), *self._a, address(b), *self._b, self._beta, address(out), *self._out, self._count
        )
