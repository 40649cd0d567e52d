"""What plugins bring for transformers: passes by phase of the pipeline, and factories of transformers."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import RegistryError
from fluidlite.base.plugin_callback import ensure_loaded

PHASES = ("prune", "simplify", "choose", "decompose", "layout", "fuse", "schedule", "inplace")
"""The phases of passes on a graph, in order. Behind them a plan is made of the graph, and bound to memory."""


class PassRegistry:
    """Passes, and factories of transformers, each by name with the plugin that brought it."""

    def __init__(self) -> None:
        self._passes: dict[str, tuple[Any, str]] = {}
        self._factories: dict[str, tuple[Any, str]] = {}

    def add(self, item: Any, plugin: str = "") -> None:
        """Register a pass (it has ``name``, ``phase`` and ``do_pass(graph)``), or a factory (``name``, ``make``).

        Raises RegistryError if it is neither, or the name is taken.
        """
        name, phase = getattr(item, "name", None), getattr(item, "phase", None)
        if isinstance(name, str) and callable(getattr(item, "make", None)):
            where, what = self._factories, "transformer factory"
        elif isinstance(name, str) and phase in PHASES and callable(getattr(item, "do_pass", None)):
            where, what = self._passes, "pass"
        else:
            raise RegistryError(
                f"{item!r} is no pass: it needs do_pass(graph), a name, and a phase out of {', '.join(PHASES)}; "
                "and it is no TransformerFactory(name, make)"
            )
        if name in where:
            by = " and by ".join(f"plugin {each!r}" if each else "a script" for each in (where[name][1], plugin))
            raise RegistryError(f"a {what} called {name!r} is registered twice: by {by}")
        where[name] = item, plugin

    def remove(self, item: Any) -> None:
        """Take a pass or a factory out again."""
        for where in (self._passes, self._factories):
            name = getattr(item, "name", None)
            if name in where and where[name][0] is item:
                del where[name]

    def all(self) -> list[tuple[Any, str]]:
        """Every pass and its plugin: phase by phase, each by name."""
        ensure_loaded()
        return sorted(self._passes.values(), key=lambda found: (PHASES.index(found[0].phase), found[0].name))

    def factories(self) -> dict[str, Any]:
        ensure_loaded()
        return {name: item for name, (item, _) in self._factories.items()}


passes = PassRegistry()
