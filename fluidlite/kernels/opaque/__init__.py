"""Array kernels of operators without an expression: sorts, searches, sequence recursions, hashes, samples."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fluidlite.plugin import hookimpl


@hookimpl
def register_kernels(register: Any) -> None:
    """Register the kernels of every module of this package."""
    for module in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{module.name}"))
