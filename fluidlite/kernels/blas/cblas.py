"""Finds ``cblas_?gemm`` and ``?gemv`` in NumPy's library and calls them on addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

# Prefix and suffix of the symbols, and their integer type, for each kind of NumPy build.
_SPELLINGS = (("scipy_cblas_", "64_", ctypes.c_int64), ("cblas_", "64_", ctypes.c_int64), ("cblas_", "", ctypes.c_int))
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112  # CBLAS_LAYOUT, CBLAS_TRANSPOSE
FLOATS = ("float32", "float64")
_MAX_ONE_THREAD = 1 << 22
"""Multiply-adds up to which a product runs on one thread: OpenBLAS's other threads spin for some milliseconds after a
call, and take the processor from the threads of the next kernels."""
_MAX_LOCKED = 1 << 18  # multiply-adds up to which releasing the interpreter's lock costs more than it gains
_MAX_GEMV_ONE_THREAD = 1 << 13  # multiply-adds up to which OpenBLAS itself runs a gemv on one thread


@dataclass(frozen=True)
class Routine:
    """``cblas_?gemm`` and ``?gemv`` of a dtype: variants that keep or release the lock, and argument types.

    ``kinds``: the names of the integer and the number type, for recorders of native calls.
    """

    keeping: Any
    releasing: Any
    vector_keeping: Any
    vector_releasing: Any
    integer: Any
    number: Any
    kinds: tuple[str, str]


def library(load: Callable[[str], Any] = ctypes.CDLL) -> Any:
    """Return the shared library that contains NumPy's cblas; None if it is not found."""
    try:
        return load(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return None


@cache
def _threads() -> tuple[Any, Any] | None:
    """Return the functions that get and set OpenBLAS's number of threads, or None if NumPy uses another library."""
    blas = library(ctypes.PyDLL)
    for prefix, suffix in (("scipy_openblas_", "64_"), ("openblas_", "64_"), ("openblas_", "")):
        names = [f"{prefix}{verb}_num_threads{suffix}" for verb in ("get", "set")]
        if all(hasattr(blas, name) for name in names):
            get_threads, set_threads = (blas[name] for name in names)
            get_threads.restype, set_threads.restype, set_threads.argtypes = ctypes.c_int, None, (ctypes.c_int,)
            return get_threads, set_threads
    return None


def _single_threaded(call: Callable[[], None]) -> Callable[[], None]:
    """Return the call with OpenBLAS limited to one thread while it runs."""
    functions = _threads()
    if functions is None:
        return call
    get_threads, set_threads = functions

    def call_with_one_thread() -> None:
        threads = get_threads()
        if threads == 1:
            call()
            return
        set_threads(1)
        try:
            call()
        finally:
            set_threads(threads)

    return call_with_one_thread


@cache
def cblas_routine(dtype: str) -> Routine | None:
    """Return the routine for float32 or float64, or None if NumPy was built with another library."""
    letter, number = ("s", ctypes.c_float) if dtype == "float32" else ("d", ctypes.c_double)
    libraries = library(ctypes.PyDLL), library()
    for prefix, suffix, integer in _SPELLINGS:
        names = [f"{prefix}{letter}{routine}{suffix}" for routine in ("gemm", "gemv")]
        if all([hasattr(library, name) for library in libraries for name in names]):
            gemm, gemv = ([library[name] for library in libraries] for name in names)
            for function in (*gemm, *gemv):
                function.restype = None
            kinds = "int32" if ctypes.sizeof(integer) == 4 else "int64", dtype
            routine = Routine(gemm[0], gemm[1], gemv[0], gemv[1], integer, number, kinds)
            return routine if _is_right(routine, dtype) else None
    return None


def unsuitable(dtype: str) -> str | None:
    """Return why cblas does not support a dtype, or None."""
    if dtype not in FLOATS:
        return f"{dtype}; cblas has float32 and float64"
    return "this build of NumPy shows no cblas" if cblas_routine(dtype) is None else None


def _is_right(routine: Routine, dtype: str) -> bool:
    """Multiply two small matrices, and a row by one, and compare: a wrong integer size gives a wrong result."""
    a, b = np.arange(6, dtype=dtype).reshape(2, 3), np.arange(12, dtype=dtype).reshape(3, 4)
    for m in (2, 1):
        out = np.full((m, 4), np.nan, dtype)
        Product(routine, m, 4, 3, 3, False, 4, False, 1.0)(a.ctypes.data, b.ctypes.data, out.ctypes.data, False)
        if not (out == a[:m] @ b).all():
            return False
    return True


class Product:
    """``out = alpha * op(a) @ op(b) + beta * out`` of row-major matrices; constant arguments are converted once.

    ``m``, ``n``, ``k``: rows and columns of the product, and the length of the contraction; all positive.
    ``a_columns``, ``b_columns``: columns of the matrices as they are stored.
    ``alpha``, ``beta``: if beta is 0, the contents of ``out`` are not read.
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
        is_short = m * n * k <= _MAX_LOCKED
        size, factor = routine.kinds
        self._types: tuple[str, ...] = ()
        """The argument types, if the call may be recorded as a native call: it is short and runs on one thread."""
        self._betas = number(beta), number(1.0)
        self._is_gemv, self._matrix_is_a = m == 1 or n == 1, m != 1
        self._single_threaded = (_MAX_GEMV_ONE_THREAD if self._is_gemv else _MAX_LOCKED) < m * n * k <= _MAX_ONE_THREAD
        if self._is_gemv:  # gemv: a matrix by a contiguous vector
            columns, transposed = (b_columns, not b_transposed) if m == 1 else (a_columns, a_transposed)
            rows = (n if b_transposed else k) if m == 1 else (k if a_transposed else m)
            self._call = routine.vector_keeping if is_short else routine.vector_releasing
            self._head: tuple[Any, ...] = (
                ctypes.c_int(ROW_MAJOR),
                ctypes.c_int(TRANSPOSED if transposed else PLAIN),
                integer(rows),
                integer(columns),
                number(alpha),
            )
            self._columns = integer(columns), integer(1), integer(1)
            if is_short and not self._single_threaded:
                matrix = "pointer", size
                self._types = ("int32", "int32", size, size, factor, *matrix, *matrix, factor, *matrix)
        else:
            if is_short:
                matrix = "pointer", size
                self._types = ("int32", "int32", "int32", size, size, size, factor, *matrix, *matrix, factor, *matrix)
            flags = [ctypes.c_int(TRANSPOSED if flag else PLAIN) for flag in (a_transposed, b_transposed)]
            self._call = routine.keeping if is_short else routine.releasing
            self._head = (ctypes.c_int(ROW_MAJOR), *flags, integer(m), integer(n), integer(k), number(alpha))
            self._columns = integer(a_columns), integer(b_columns), integer(n)

    def __call__(self, a: int, b: int, out: int, add: bool) -> None:
        """Multiply the matrices at these addresses."""
        self.bind(a, b, out, add)()

    def bind(self, a: int, b: int, out: int, add: bool) -> Callable[[], None]:
        """Return the call with its addresses bound."""
        call = partial(self._call, *self._arguments(a, b, out, add))
        return _single_threaded(call) if self._single_threaded else call

    def _arguments(self, a: int, b: int, out: int, add: bool) -> tuple[Any, ...]:
        columns, address = self._columns, ctypes.c_void_p
        if self._is_gemv and not self._matrix_is_a:
            a, b = b, a
        matrices = address(a), columns[0], address(b), columns[1]
        return (*self._head, *matrices, self._betas[add], address(out), columns[2])

    def record(self, recorder: Any, a: int, b: int, out: int, add: bool) -> bool:
        """Record the call with its addresses bound; return False if it cannot be a native call."""
        if not self._types:
            return False
        address = ctypes.cast(self._call, ctypes.c_void_p).value
        recorder.call(address, self._types, *[each.value for each in self._arguments(a, b, out, add)])
        return True
