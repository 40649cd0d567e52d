"""Products of matrices on GPUs, by cuBLAS through CuPy, half types on the tensor cores."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Any) -> None:
    """Name the library."""
    register(Library("cublas", ("cuda",), 20, "products of matrices, by CuPy's cuBLAS"))


@hookimpl
def register_kernels(register: Any) -> None:
    """Hand the kernels over."""
    for found in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{found.name}"))
