"""CuPy as array namespace."""

from __future__ import annotations

import importlib
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from fluidlite.plugin import ArrayBase, Span, numpy_dtype

WITH_PLACE = ("ceil", "floor", "matmul", "trunc")
"""Functions that CuPy gives a place for their result, and array-api-compat takes it from."""


def namespace(cupy: Any) -> Any:
    """Return the Array-API functions over CuPy, which take a place for their result as CuPy's own do.

    array-api-compat makes CuPy of whichever version follow the standard: it adds names and arguments that CuPy
    lacks. Where its functions take no ``out``, CuPy's own come first; they differ from it in integers only (floor,
    ceil, trunc), which expressions never give them.
    """
    standard = importlib.import_module("array_api_compat.cupy")

    def sign(x: Any, out: Any = None) -> Any:
        """CuPy's sign of NaN is 0; the standard's is NaN."""
        nan = None if x.dtype.kind in "biu" else cupy.isnan(x)  # before out, which may be x, is written
        found = cupy.sign(x, out)
        if nan is not None:
            cupy.copyto(found, cupy.nan, where=nan)
        return found

    own = {name: getattr(cupy, name) for name in WITH_PLACE}
    return SimpleNamespace(**{**vars(cupy), **vars(standard), **own, "sign": sign})


class CuPyArrays(ArrayBase):
    """The array capability: CuPy over a handle's bytes; calls run on the stream that ``activate`` made current.

    Its extras: ``erf``, ``scatter_add(out, index, values)`` (axis 0, repeated indices add up, in any
    order), ``take_along_axis``, ``put_along_axis`` and ``from_dlpack``.
    """

    out = True
    lacks = ("bfloat16",)

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._unowned = cupy.cuda.UnownedMemory

    @cached_property
    def xp(self) -> Any:
        """The namespace; made when first asked for."""
        return namespace(self._cupy)

    def wrap(self, span: Span, dims: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None) -> Any:
        kind = numpy_dtype(dtype)
        steps = None if strides is None else tuple(step * kind.itemsize for step in strides)
        return self._cupy.ndarray(dims, kind, memptr=span.handle + span.offset, strides=steps)

    def adopt(self, array: Any) -> Any:
        """Return the memory of a C-contiguous array that CuPy itself allocated; else None.

        A view is refused, and so is an array over one of our handles (all of them unowned memory, see the
        allocator): it may be a kernel's input, and two tensors would share memory.
        """
        if not isinstance(array, self._cupy.ndarray) or array.base is not None or not array.flags.c_contiguous:
            return None
        return None if isinstance(array.data.mem, self._unowned) else array.data

    def extra(self, name: str) -> Any:
        """Return one of the extras above, or None. The modules behind them are slow to import, so late."""
        if name == "erf":
            return importlib.import_module("cupyx.scipy.special").erf
        if name == "scatter_add":
            return self._cupy.add.at
        if name in ("take_along_axis", "put_along_axis", "from_dlpack"):
            return getattr(self._cupy, name)
        return None
