"""Kernels for the memory capability: every device has them, for they only copy."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fluidlite.plugin import hookimpl


@hookimpl
def register_kernels(register: Any) -> None:
    """Hand the kernels over."""
    for found in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{found.name}"))
