"""The cache of choices by call; registration of a kernel, operator or device invalidates it."""

from __future__ import annotations

from fluidlite.base.lru_cache import LRUCache
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.device_registry import devices
from fluidlite.program.kernel_registry import Kernel, kernels
from fluidlite.program.registry import ops

MAX_CHOICES = 4096
"""Calls whose choice is cached."""


class ChoiceCache:
    """Choices for one generation of the registries; a thread that selects by an older generation uses its own cache."""

    def __init__(self, generation: tuple[int, ...]) -> None:
        self.generation = generation
        self.choices: LRUCache[Choice] = LRUCache(MAX_CHOICES, "choices", 8 << 20)
        self.native: LRUCache[list[Kernel]] = LRUCache(MAX_CHOICES, "native kernels", 8 << 20)


_cache = ChoiceCache(())


def current_choices() -> ChoiceCache:
    global _cache
    cache, current = _cache, (kernels.generation, ops.generation, devices.generation)
    if cache.generation != current:
        cache = _cache = ChoiceCache(current)
    return cache


def registry_versions() -> tuple[int, int, int]:
    """The version counters of the registries: they change whenever a kernel, operator or device is registered."""
    return kernels.generation, ops.generation, devices.generation
