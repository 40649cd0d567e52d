"""Matrix products and updates through the cblas that NumPy's own wheel brings, without NumPy's cost of a call."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Any) -> None:
    """Name the libraries."""
    register(Library("blas", ("cpu",), 10, "the cblas inside NumPy, called directly"))
    register(Library("im2col", ("cpu",), 25, "convolutions of few windows by that cblas, the filter where it lies"))


@hookimpl
def register_kernels(register: Any) -> None:
    """Hand the kernels over."""
    for found in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{found.name}"))
