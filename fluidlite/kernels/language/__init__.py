"""Handwritten kernels in a kernel language: one source for OpenCL, CUDA and the C compiler of any plugin.

They use no barriers, local memory or atomics: a work-item computes one element, row or tile of the output alone and in
a fixed order, so results are bitwise reproducible. Sizes are arguments: another batch size compiles nothing, except
once a kernel that packs for many rows.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Callable[[Any], None]) -> None:
    """Register the libraries of kernels that need vector registers; all other kernels belong to "plain"."""
    register(
        Library("winograd", ("*",), 30, "convolutions of 3 x 3 with fewer products, rounded at the size of a tile")
    )
    register(Library("registers", ("*",), 20, "convolutions and products whose sums stay in vector registers"))


@hookimpl
def register_kernels(register: Callable[[Any], None]) -> None:
    """Register the kernels of every module of this package."""
    for module in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{module.name}"))
