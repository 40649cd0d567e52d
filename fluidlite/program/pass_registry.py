"""The registry of plugins' passes, by phase of the pipeline, and of transformer factories."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import RegistryError
from fluidlite.base.plugin_callback import ensure_loaded

PHASES = ("prune", "simplify", "choose", "decompose", "layout", "fuse", "schedule", "inplace")
"""The phases of graph passes, in order. Afterwards the graph is planned, and the plan is bound to memory."""


class PassRegistry:
    """Passes and transformer factories by name, each with the plugin that provides it."""

    def __init__(self) -> None:
        self._passes: dict[str, tuple[Any, str]] = {}
        self._factories: dict[str, tuple[Any, str]] = {}

    def add(self, item: Any, plugin: str = "") -> None:
        """Register a pass (with ``name``, ``phase`` and ``do_pass(graph)``), or a factory (``name``, ``make``).

        Raises RegistryError if it is neither, or the name is registered already.
        """
        name, phase = getattr(item, "name", None), getattr(item, "phase", None)
        if isinstance(name, str) and callable(getattr(item, "make", None)):
            entries, what = self._factories, "transformer factory"
        elif isinstance(name, str) and phase in PHASES and callable(getattr(item, "do_pass", None)):
            entries, what = self._passes, "pass"
        else:
            raise RegistryError(
                f"{item!r} is no pass: it needs do_pass(graph), a name, and a phase out of {', '.join(PHASES)}; "
                "and it is no TransformerFactory(name, make)"
            )
        if name in entries:
            by = " and by ".join(f"plugin {each!r}" if each else "a script" for each in (entries[name][1], plugin))
            raise RegistryError(f"a {what} called {name!r} is registered twice: by {by}")
        entries[name] = item, plugin

    def remove(self, item: Any) -> None:
        """Remove a pass or a factory."""
        for entries in (self._passes, self._factories):
            name = getattr(item, "name", None)
            if name in entries and entries[name][0] is item:
                del entries[name]

    def all(self) -> list[tuple[Any, str]]:
        """Return every pass with its plugin, ordered by phase and name."""
        ensure_loaded()
        return sorted(self._passes.values(), key=lambda entry: (PHASES.index(entry[0].phase), entry[0].name))

    def factories(self) -> dict[str, Any]:
        ensure_loaded()
        return {name: item for name, (item, _) in self._factories.items()}


passes = PassRegistry()
