"""Products of many matrices at equal steps in one call: ``cblas_?gemm_batch_strided``, which OpenBLAS has from 0.3.29.

Its threads take whole matrices, so they meet once a call, not once a matrix.
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

from .cblas import PLAIN, ROW_MAJOR, TRANSPOSED, Routine, find, library

SMALL = 100**3
"""Up to so many multiplications a matrix, builds for several processors at once crash in it (mended in 2026); on x86,
no kernel for small matrices takes larger ones."""


@cache
def batched(dtype: str) -> Any:
    """Return the routine for float32 or float64, or None where it is not there, or may not be trusted."""
    routine = find(dtype)
    if routine is None or platform.machine() not in ("x86_64", "AMD64"):
        return None
    found = getattr(library(), f"cblas_{'s' if dtype == 'float32' else 'd'}gemm_batch_strided", None)
    if found is None:
        return None
    found.restype = None
    return found if _is_right(found, routine, dtype) else None


def _is_right(found: Any, routine: Routine, dtype: str) -> bool:
    """Multiply two pairs of matrices: integers of the wrong size would show."""
    side = 101
    a = (np.arange(2 * side * side, dtype=dtype) % 7).reshape(2, side, side)
    out = np.full_like(a, np.nan)
    step = side * side
    gemm = Gemm("", a.shape, True, "", a.shape, False, "", side, side, side, (2,), (), 1.0)
    Batch(found, routine, gemm, (step, step, step), 2, 1.0).bind(a.ctypes.data, a.ctypes.data, out.ctypes.data)()
    return bool((out == a.transpose(0, 2, 1) @ a).all())


def steps_of(gemm: Gemm) -> tuple[int, int, int] | None:
    """How many matrices of a, b and out lie between two products; None if one call can't do them."""
    if prod(gemm.batch) < 2 or gemm.m * gemm.n * gemm.k <= SMALL or 1 in (gemm.m, gemm.n):
        return None
    return gemm.strided()


class Batch:
    """``out = alpha * op(a) @ op(b) + beta * out`` for ``count`` matrices.

    ``routine``: says what integers and numbers the library takes.
    ``steps``: elements from a matrix of a, b and out to the next.
    """

    def __init__(
        self,
        found: Any,
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
        self._call = partial(found, ctypes.c_int(ROW_MAJOR), *flags, *sizes, number(alpha))
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
