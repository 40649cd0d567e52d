"""The passes that plugins bring, by phase of the pipeline."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import RegistryError

PHASES = (
    "prune", "simplify", "choose", "decompose", "layout", "fuse", "schedule", "inplace", "plan", "generate", "bind",
)  # fmt: skip


class PassRegistry:
    """Passes by name; each says its ``phase``."""

    def __init__(self) -> None:
        self._passes: dict[str, Any] = {}

    def add(self, item: Any) -> None:
        """Register a pass: an object with ``name`` and ``phase``."""
        name, phase = getattr(item, "name", None), getattr(item, "phase", None)
        if not isinstance(name, str) or phase not in PHASES:
            raise RegistryError(f"{item!r} is no pass: it needs a name, and a phase out of {', '.join(PHASES)}")
        if name in self._passes:
            raise RegistryError(f"a pass called {name!r} is registered twice")
        self._passes[name] = item

    def remove(self, item: Any) -> None:
        """Take a pass out again."""
        self._passes.pop(item.name, None)

    def of(self, phase: str) -> list[Any]:
        """Passes of a phase, by name."""
        return [self._passes[name] for name in sorted(self._passes) if self._passes[name].phase == phase]


passes = PassRegistry()
