"""The five hooks of a plugin, called once in this order; registrations take effect only if all hooks return."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pluggy

PROJECT = "fluidlite"
API_VERSION = 1
"""The version of the plugin API; within a version, names are only added."""
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def register_devices(register: Callable[[Any], None]) -> None:
    """Register devices with ``register(device)``. Import no driver here: ``Device.probe`` does."""


@hookspec
def register_libraries(register: Callable[[Any], None]) -> None:
    """Register computing libraries with ``register(Library(name, places, rank))``."""


@hookspec
def register_operators(register: Callable[[Any | ModuleType | str], None]) -> None:
    """Register new operators: ``register(opdef)``, or ``register(module)`` of a module that calls ``register_op``.

    ``register("package.samples")`` names a module that calls ``register_samples``: it is imported when samples are
    first needed, never to run a program.
    """


@hookspec
def register_kernels(register: Callable[[Any | ModuleType], None]) -> None:
    """Register kernels: ``register(kernel or module)``. Kernels of unknown operators are reported."""


@hookspec
def register_passes(register: Callable[[Any], None]) -> None:
    """Register graph passes, for the phase that each names, with ``register(graph_pass)``; or transformers.

    A transformer is registered as ``TransformerFactory(name, make)``: it is added to ``transformer_choices()``.
    """
