"""The five hooks of a plugin: called once, in this order; what they register is kept only if all of them return."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pluggy

PROJECT = "fluidlite"
API_VERSION = 1
"""The version of the plugin API: within one, names are only added."""
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def register_devices(register: Callable[[Any], None]) -> None:
    """Offer devices with ``register(device)``. Import no driver here: ``Device.probe`` does."""


@hookspec
def register_libraries(register: Callable[[Any], None]) -> None:
    """Name computing libraries with ``register(Library(name, places, rank))``."""


@hookspec
def register_operators(register: Callable[[Any | ModuleType | str], None]) -> None:
    """Declare what new operators mean: ``register(opdef)``, or ``register(module)`` that calls ``register_op``.

    ``register("package.samples")`` names a module that calls ``register_samples``: it is imported when samples are
    first asked for, and never by a program that runs.
    """


@hookspec
def register_kernels(register: Callable[[Any | ModuleType], None]) -> None:
    """Say how operators compute: ``register(kernel or module)``. A kernel for an unknown operator is reported."""


@hookspec
def register_passes(register: Callable[[Any], None]) -> None:
    """Add graph passes, each to the phase that it names: ``register(graph_pass)``; and ``register(factory)``.

    The latter is a ``TransformerFactory(name, make)``: one more of ``transformer_choices()``.
    """
