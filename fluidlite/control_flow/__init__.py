"""Operators that run sub-blocks (while, conditional_block, recurrent: a body is a program of its own) or arrays."""

import pkgutil
from importlib import import_module

__all__: list[str] = []

for _found in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")
