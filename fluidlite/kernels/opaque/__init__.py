"""Kernels of operators that are no functions of tensors: sorting, searching, walks along sequences, hashes, samples."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fluidlite.plugin import hookimpl


@hookimpl
def register_kernels(register: Any) -> None:
    """Hand every module over."""
    for found in pkgutil.iter_modules(__path__):
        register(import_module(f"{__name__}.{found.name}"))
