"""Shared helpers of array kernels, which use only the Array-API standard unless the namespace takes ``out=``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fluidlite.plugin import Context


def is_numpy_style(context: Context) -> bool:
    """Whether functions accept ``out=`` and arrays have NumPy's methods (NumPy, CuPy)."""
    return bool(context.array.out)


def is_on_host(context: Context) -> bool:
    """Whether arrays are NumPy-style in host memory, so that reading values and fancy assignment cost nothing extra."""
    return bool(context.array.out and context.array.eager)


def view(xp: Any, array: Any, dims: tuple[int, ...]) -> Any:
    """Return a view of a contiguous array with other dims."""
    if array.shape == dims:
        return array
    return xp.reshape(array, dims, copy=None if 0 in array.shape else False)  # an array without elements has no view


def stable_argsort(xp: Any) -> Callable[..., Any]:
    """Return the namespace's stable argsort. The standard's takes ``stable``; CuPy's does not, and is always stable."""
    if "stable" in inspect.signature(xp.argsort).parameters:
        return lambda x: xp.argsort(x, axis=-1, stable=True)
    return lambda x: xp.argsort(x, axis=-1)
