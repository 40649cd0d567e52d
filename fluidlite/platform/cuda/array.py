"""CuPy as array namespace."""

from __future__ import annotations

import importlib
from typing import Any

from fluidlite.plugin import ArrayBase, Span, numpy_dtype


class CuPyArrays(ArrayBase):
    """The array capability: CuPy over a handle's bytes; calls run on the stream that ``activate`` made current.

    Its extras: ``erf``, ``scatter_add(out, index, values)`` (axis 0, repeated indices add up, in any
    order), ``take_along_axis``, ``put_along_axis`` and ``from_dlpack``.
    """

    out = True

    def __init__(self, cupy: Any) -> None:
        self.xp = cupy
        self._unowned = cupy.cuda.UnownedMemory

    def wrap(self, span: Span, dims: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None) -> Any:
        """View a span as an array; ``strides`` in elements, None for C order."""
        kind = numpy_dtype(dtype)
        steps = None if strides is None else tuple(step * kind.itemsize for step in strides)
        return self.xp.ndarray(dims, kind, memptr=span.handle + span.offset, strides=steps)

    def adopt(self, array: Any) -> Any:
        """Return the memory of a C-contiguous array that CuPy itself allocated; else None.

        A view is refused, and so is an array over one of our handles (all of them unowned memory, see the
        allocator): it may be a kernel's input, and two tensors would share memory.
        """
        if not isinstance(array, self.xp.ndarray) or array.base is not None or not array.flags.c_contiguous:
            return None
        return None if isinstance(array.data.mem, self._unowned) else array.data

    def extra(self, name: str) -> Any:
        """Return one of the extras above, or None. The modules behind them are slow to import, so late."""
        if name == "erf":
            return importlib.import_module("cupyx.scipy.special").erf
        if name == "scatter_add":
            return importlib.import_module("cupyx").scatter_add
        if name in ("take_along_axis", "put_along_axis", "from_dlpack"):
            return getattr(self.xp, name)
        return None
