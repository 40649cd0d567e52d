"""Operators that run sub-blocks (while, conditional_block, recurrent) as separate programs, or use arrays."""

import pkgutil
from importlib import import_module

__all__: list[str] = []

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
