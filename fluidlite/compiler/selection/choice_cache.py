"""Choices that are kept for the calls of one generation of registries."""

from __future__ import annotations

from fluidlite.base.lru_cache import LRUCache
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.device_registry import devices
from fluidlite.program.kernel_registry import Kernel, kernels
from fluidlite.program.registry import ops

MAX_CHOICES = 4096


class ChoiceCache:
    """Choices of one generation: a thread that is still choosing by an older one keeps its own."""

    def __init__(self, generation: tuple[int, ...]) -> None:
        self.generation = generation
        self.choices: LRUCache[Choice] = LRUCache(MAX_CHOICES, "choices", 8 << 20)
        self.native: LRUCache[list[Kernel]] = LRUCache(MAX_CHOICES, "native kernels", 8 << 20)


_cache = ChoiceCache(())


def current_choices() -> ChoiceCache:
    global _cache
    found, now = _cache, (kernels.generation, ops.generation, devices.generation)
    if found.generation != now:
        found = _cache = ChoiceCache(now)
    return found


def generation() -> tuple[int, int, int]:
    """Changes whenever a kernel, operator or device is registered; caches of choices watch it."""
    return kernels.generation, ops.generation, devices.generation
