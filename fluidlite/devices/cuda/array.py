"""CuPy as the array namespace of CUDA devices."""

from __future__ import annotations

import importlib
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from fluidlite.plugin import ArrayBase, Span, numpy_dtype

WITH_OUT = ("ceil", "floor", "matmul", "trunc")
"""Functions that take ``out=`` in CuPy, but not in array-api-compat."""


def namespace(cupy: Any) -> Any:
    """Return the Array-API functions over CuPy, with CuPy's ``out`` argument.

    array-api-compat makes any version of CuPy follow the standard: it adds names and arguments that CuPy lacks.
    Where its functions take no ``out``, CuPy's own are used; they differ from it for integers only (floor, ceil,
    trunc), and expressions never pass integers to them.
    """
    standard = importlib.import_module("array_api_compat.cupy")

    def sign(x: Any, out: Any = None) -> Any:
        """CuPy's sign of NaN is 0; the standard's is NaN."""
        nan = None if x.dtype.kind in "biu" else cupy.isnan(x)  # before out is written: it may be x
        result = cupy.sign(x, out)
        if nan is not None:
            cupy.copyto(result, cupy.nan, where=nan)
        return result

    own = {name: getattr(cupy, name) for name in WITH_OUT}
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
        """The namespace, created at the first access."""
        return namespace(self._cupy)

    def wrap(self, span: Span, dims: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None) -> Any:
        kind = numpy_dtype(dtype)
        steps = None if strides is None else tuple(step * kind.itemsize for step in strides)
        return self._cupy.ndarray(dims, kind, memptr=span.handle + span.offset, strides=steps)

    def adopt(self, array: Any) -> Any:
        """Return the memory of a C-contiguous array that CuPy itself allocated; else None.

        A view is refused, and so is an array over a handle of this device (all are unowned memory, see the
        allocator): it may be a kernel's input, and two tensors would share memory.
        """
        if not isinstance(array, self._cupy.ndarray) or array.base is not None or not array.flags.c_contiguous:
            return None
        return None if isinstance(array.data.mem, self._unowned) else array.data

    def extra(self, name: str) -> Any:
        """Return one of the extras above, or None. Their modules are slow to import, so they are imported here."""
        if name == "erf":
            return importlib.import_module("cupyx.scipy.special").erf
        if name == "scatter_add":
            return self._cupy.add.at
        if name in ("take_along_axis", "put_along_axis", "from_dlpack"):
            return getattr(self._cupy, name)
        return None
