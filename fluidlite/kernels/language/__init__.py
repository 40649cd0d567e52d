"""Kernels in the keywords of a kernel language: written once, compiled by OpenCL and by any plugin's C.

No barriers, no local memory, no atomics: a work item computes one element, row or tile of the output by
itself, in a fixed order, so results repeat bit for bit. Sizes are arguments: another batch size compiles nothing, or
once what packs for many rows.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fluidlite.plugin import Library, hookimpl


@hookimpl
def register_libraries(register: Callable[[Any], None]) -> None:
    """Name the libraries of kernels that need vector registers; all others belong to "plain"."""
    register(
        Library("winograd", ("*",), 30, "convolutions of 3 x 3 with fewer products, rounded at the size of a tile")
    )
    register(Library("registers", ("*",), 20, "convolutions and products whose sums stay in vector registers"))


@hookimpl
def register_kernels(register: Callable[[Any], None]) -> None:
    """Hand the families over."""
    for found in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{found.name}"))
