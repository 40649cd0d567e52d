"""Collective operators between GPUs, by NCCL through CuPy: nothing passes the host."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Any) -> None:
    """Name the library."""
    register(Library("nccl", ("cuda",), 20, "collective operators between GPUs, by CuPy's NCCL"))


@hookimpl
def register_kernels(register: Any) -> None:
    """Hand the kernels over."""
    for found in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{found.name}"))
