"""Collective operators between GPUs by CuPy's NCCL, without copies to the host."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Any) -> None:
    """Register the library."""
    register(Library("nccl", ("cuda",), 20, "collective operators between GPUs, by CuPy's NCCL"))


@hookimpl
def register_kernels(register: Any) -> None:
    """Register the kernels of every module of this package."""
    for module in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{module.name}"))
