"""The cache of choices by call; registration of a kernel, operator or device invalidates it."""

from __future__ import annotations

from fluidlite.base.lru_cache import LRUCache
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.device_registry import devices
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.registry import ops

MAX_CHOICES = 4096
"""Calls whose choice is cached."""


def _new_cache() -> LRUCache[Choice]:
    return LRUCache(MAX_CHOICES, "choices", 8 << 20)


_cache: tuple[tuple[int, ...], LRUCache[Choice]] = (), _new_cache()
"""The versions of the registries, and the choices by call for these."""


def current_choices() -> LRUCache[Choice]:
    """The choices for the registries as they are; a thread that selects by older ones uses its own cache."""
    global _cache
    cache, current = _cache, registry_versions()
    if cache[0] != current:
        cache = _cache = current, _new_cache()
    return cache[1]


def registry_versions() -> tuple[int, int, int]:
    """The version counters of the registries: they change whenever a kernel, operator or device is registered."""
    return kernels.generation, ops.generation, devices.generation
