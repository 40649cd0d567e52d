"""Operator declarations, one module a family. Importing this package registers all operators."""

import pkgutil
from importlib import import_module

__all__: list[str] = []

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
