"""Kernels that call the cblas inside NumPy's wheel directly, without the overhead of a NumPy call."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Any) -> None:
    """Register the libraries."""
    register(Library("blas", ("cpu",), 10, "the cblas inside NumPy, called directly"))
    register(Library("im2col", ("cpu",), 25, "convolutions of few windows by that cblas, the filter where it lies"))


@hookimpl
def register_kernels(register: Any) -> None:
    """Register the kernels of every module of this package."""
    for module in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{module.name}"))
