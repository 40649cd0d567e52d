"""What array kernels share. They keep to the Array-API standard unless the namespace takes ``out=``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fluidlite.plugin import Context


def numpy_style(context: Context) -> bool:
    """Whether functions take ``out=`` and arrays have NumPy's methods (NumPy, CuPy)."""
    return bool(context.array.out)


def immediate(context: Context) -> bool:
    """Whether NumPy's style comes with host memory: then reading values and fancy assignment cost nothing extra."""
    return bool(context.array.out and context.array.eager)


def view(xp: Any, array: Any, dims: tuple[int, ...]) -> Any:
    """The array under other dims; a write to it is one to the array, which is contiguous."""
    if array.shape == dims:
        return array
    return xp.reshape(array, dims, copy=None if 0 in array.shape else False)  # of no elements none are shared


def stable_argsort(xp: Any) -> Callable[..., Any]:
    """The namespace's argsort, stable. The standard's takes ``stable``; CuPy's does not, and is always so."""
    if "stable" in inspect.signature(xp.argsort).parameters:
        return lambda x: xp.argsort(x, axis=-1, stable=True)
    return lambda x: xp.argsort(x, axis=-1)
