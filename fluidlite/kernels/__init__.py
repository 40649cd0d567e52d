"""Kernels of operators: one package for each library or capability, each a plugin like a third party's."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fluidlite.plugin import hookimpl

Register = Callable[[Any], None]


def kernels_of_package(name: str) -> Callable[[Register], None]:
    """Return the hook ``register_kernels`` of a package: it registers the kernels of each of its modules."""

    @hookimpl
    def register_kernels(register: Register) -> None:
        for module in pkgutil.iter_modules(import_module(name).__path__):
            register(import_module(f"{name}.{module.name}"))

    return register_kernels
