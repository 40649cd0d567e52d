"""Finds ``cblas_?gemm`` and ``?gemv`` behind NumPy and calls them by address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

# Prefix and suffix of the symbols by build of NumPy, and the integers that they take.
_SPELLINGS = (("scipy_cblas_", "64_", ctypes.c_int64), ("cblas_", "64_", ctypes.c_int64), ("cblas_", "", ctypes.c_int))
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
FLOATS = ("float32", "float64")
_ALONE = 1 << 22
"""Multiplications up to which a product has one thread: OpenBLAS's others wait for more work by turning for some
milliseconds, and take the processor from the threads of the kernels that follow."""
_SHORT = 1 << 18  # multiplications of a product so short that giving up the interpreter's lock costs more
_ONE_ANYWAY = 1 << 13  # multiplications of a matrix by a vector that OpenBLAS itself gives to one thread


@dataclass(frozen=True)
class Routine:
    """``cblas_?gemm`` and ``?gemv`` of a dtype: functions that keep the interpreter's lock, that release it, types.

    ``kinds``: the names of its integers and numbers.
    """

    keeping: Any
    releasing: Any
    vector_keeping: Any
    vector_releasing: Any
    integer: Any
    number: Any
    kinds: tuple[str, str]


def library(load: Callable[[str], Any] = ctypes.CDLL) -> Any:
    """The library behind NumPy; None if it is not found."""
    try:
        return load(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return None


@cache
def _threads() -> tuple[Any, Any] | None:
    """The functions that get and set OpenBLAS's number of threads, or None if NumPy has another library."""
    blas = library(ctypes.PyDLL)
    for prefix, suffix in (("scipy_openblas_", "64_"), ("openblas_", "64_"), ("openblas_", "")):
        names = [f"{prefix}{verb}_num_threads{suffix}" for verb in ("get", "set")]
        if all(hasattr(blas, name) for name in names):
            get, put = (blas[name] for name in names)
            get.restype, put.restype, put.argtypes = ctypes.c_int, None, (ctypes.c_int,)
            return get, put
    return None


def _alone(call: Callable[[], None]) -> Callable[[], None]:
    """The same call with one thread."""
    found = _threads()
    if found is None:
        return call
    get, put = found

    def alone() -> None:
        threads = get()
        if threads == 1:
            call()
            return
        put(1)
        try:
            call()
        finally:
            put(threads)

    return alone


@cache
def find(dtype: str) -> Routine | None:
    """Return the routine for float32 or float64, or None if NumPy was built with another library."""
    letter, number = ("s", ctypes.c_float) if dtype == "float32" else ("d", ctypes.c_double)
    libraries = library(ctypes.PyDLL), library()
    for prefix, suffix, integer in _SPELLINGS:
        names = [f"{prefix}{letter}{routine}{suffix}" for routine in ("gemm", "gemv")]
        if all([hasattr(each, name) for each in libraries for name in names]):
            gemm, gemv = ([each[name] for each in libraries] for name in names)
            for function in (*gemm, *gemv):
                function.restype = None
            kinds = "int32" if ctypes.sizeof(integer) == 4 else "int64", dtype
            routine = Routine(gemm[0], gemm[1], gemv[0], gemv[1], integer, number, kinds)
            return routine if _is_right(routine, dtype) else None
    return None


def unsuitable(dtype: str) -> str | None:
    """Why cblas does not compute in a dtype, or None."""
    if dtype not in FLOATS:
        return f"{dtype}; cblas has float32 and float64"
    return "this build of NumPy shows no cblas" if find(dtype) is None else None


def _is_right(routine: Routine, dtype: str) -> bool:
    """Multiply two small matrices, and a row by one: integers of the wrong size would show."""
    a, b = np.arange(6, dtype=dtype).reshape(2, 3), np.arange(12, dtype=dtype).reshape(3, 4)
    for m in (2, 1):
        out = np.full((m, 4), np.nan, dtype)
        Product(routine, m, 4, 3, 3, False, 4, False, 1.0)(a.ctypes.data, b.ctypes.data, out.ctypes.data, False)
        if not (out == a[:m] @ b).all():
            return False
    return True


class Product:
    """``out = alpha * op(a) @ op(b) + beta * out`` of row-major matrices; the fixed arguments are converted once.

    ``m``, ``n``, ``k``: rows and columns of the product, and the length of the contraction; all positive.
    ``a_columns``, ``b_columns``: columns of the matrices as they are stored.
    ``alpha``, ``beta``: without a beta, what ``out`` holds is not read.
    """

    def __init__(
        self,
        routine: Routine,
        m: int,
        n: int,
        k: int,
        a_columns: int,
        a_transposed: bool,
        b_columns: int,
        b_transposed: bool,
        alpha: float,
        beta: float = 0.0,
    ) -> None:
        integer, number = routine.integer, routine.number
        short = m * n * k <= _SHORT
        size, factor = routine.kinds
        self._kinds: tuple[str, ...] = ()
        """The types of its arguments, if it may be called from native code: so short that one thread does it."""
        self._keep = number(beta), number(1.0)
        self._row, self._matrix_first = m == 1 or n == 1, m != 1
        self._alone = (_ONE_ANYWAY if self._row else _SHORT) < m * n * k <= _ALONE
        if self._row:  # a matrix by a vector, whose elements lie side by side
            columns, turned = (b_columns, not b_transposed) if m == 1 else (a_columns, a_transposed)
            rows = (n if b_transposed else k) if m == 1 else (k if a_transposed else m)
            self._call = routine.vector_keeping if short else routine.vector_releasing
            self._head: tuple[Any, ...] = (
                ctypes.c_int(ROW_MAJOR),
                ctypes.c_int(TRANSPOSED if turned else PLAIN),
                integer(rows),
                integer(columns),
                number(alpha),
            )
            self._columns = integer(columns), integer(1), integer(1)
            if short and not self._alone:
                place = "pointer", size
                self._kinds = ("int32", "int32", size, size, factor, *place, *place, factor, *place)
        else:
            if short:
                place = "pointer", size
                self._kinds = ("int32", "int32", "int32", size, size, size, factor, *place, *place, factor, *place)
            flags = [ctypes.c_int(TRANSPOSED if flag else PLAIN) for flag in (a_transposed, b_transposed)]
            self._call = routine.keeping if short else routine.releasing
            self._head = (ctypes.c_int(ROW_MAJOR), *flags, integer(m), integer(n), integer(k), number(alpha))
            self._columns = integer(a_columns), integer(b_columns), integer(n)

    def __call__(self, a: int, b: int, out: int, add: bool) -> None:
        """Multiply the matrices at these addresses."""
        self.bind(a, b, out, add)()

    def bind(self, a: int, b: int, out: int, add: bool) -> Callable[[], None]:
        """Return the call with its addresses fixed."""
        call = partial(self._call, *self._arguments(a, b, out, add))
        return _alone(call) if self._alone else call

    def _arguments(self, a: int, b: int, out: int, add: bool) -> tuple[Any, ...]:
        columns, address = self._columns, ctypes.c_void_p
        if self._row and not self._matrix_first:
            a, b = b, a
        matrices = address(a), columns[0], address(b), columns[1]
        return (*self._head, *matrices, self._keep[add], address(out), columns[2])

    def record(self, recorder: Any, a: int, b: int, out: int, add: bool) -> bool:
        """Note the call with its addresses fixed, if it may be made from native code."""
        if not self._kinds:
            return False
        where = ctypes.cast(self._call, ctypes.c_void_p).value
        recorder.call(where, self._kinds, *[each.value for each in self._arguments(a, b, out, add)])
        return True
