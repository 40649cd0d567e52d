"""WHAT operators mean: one short file a family. Importing this package declares them all."""

import pkgutil
from importlib import import_module

__all__: list[str] = []

for _found in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")
