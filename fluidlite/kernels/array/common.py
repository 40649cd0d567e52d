"""What the array kernels share. They keep to the Array-API standard unless the namespace takes ``out=``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.plugin import Context, compute_dtype


def is_half(dtype: str) -> bool:
    """Whether values of the dtype are computed in float32."""
    return compute_dtype(dtype) != dtype


def widener(dtype: str, context: Context) -> Callable[[Any], Any]:
    """Return the conversion of stored arrays into the type in which one computes."""
    if not is_half(dtype):
        return _same
    xp = context.xp

    def widen(array: Any) -> Any:
        return xp.astype(array, xp.float32)

    return widen


def _same(array: Any) -> Any:
    return array


def storer(context: Context) -> Callable[[Any, Any], None]:
    """Return ``store(out, value)``: the one rounding and reshaping of a result into its output."""
    xp = context.xp

    def store(out: Any, value: Any) -> None:
        if value.dtype != out.dtype:
            value = xp.astype(value, out.dtype)
        if value.shape != out.shape:
            value = xp.reshape(value, out.shape)
        out[...] = value

    return store


def numpy_style(context: Context) -> bool:
    """Whether functions take ``out=`` and arrays have NumPy's methods (NumPy, CuPy)."""
    return bool(context.array.out)


def immediate(context: Context) -> bool:
    """Whether NumPy's style comes with host memory: then reading values and fancy assignment cost nothing extra."""
    return bool(context.array.out and context.array.eager)


def rows_of(dims: tuple[int, ...]) -> tuple[int, int]:
    """Return dims as (rows, last axis)."""
    rows = 1
    for size in dims[:-1]:
        rows *= size
    return rows, dims[-1]
