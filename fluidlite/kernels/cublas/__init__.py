"""GEMMs and convolutions on GPUs by CuPy's cuBLAS; half types use the tensor cores."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Any) -> None:
    """Register the library."""
    register(Library("cublas", ("cuda",), 20, "products of matrices, by CuPy's cuBLAS"))


@hookimpl
def register_kernels(register: Any) -> None:
    """Register the kernels of every module of this package."""
    for module in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{module.name}"))
