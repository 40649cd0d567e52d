"""Collective operators through host memory: between processes by MPI, between threads of a process in memory."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Any) -> None:
    """Register the library."""
    register(Library("mpi", ("*",), 0, "collective operators through the host, by mpi4py where mpirun started several"))


@hookimpl
def register_kernels(register: Any) -> None:
    """Register the kernels of every module of this package."""
    for module in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{module.name}"))
