"""The modules that belong to plugins, determined from the entry points before any of them is imported.

Declarations of a plugin's module take effect only when the plugin's hooks are called, whichever code imports the
module. A program may therefore import it before or after fluidlite loads plugins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

_TESTS = frozenset({"tests", "test", "testing", "examples", "conftest"})
"""Parts of a plugin's package that use the plugin, as user code does: their declarations take effect at once."""


def _root(target: str) -> str:
    """The package of a plugin's module: the first that is not a namespace package."""
    parts = target.split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[:count])
        module = sys.modules.get(name)
        if module is None or getattr(module, "__file__", None) is not None or not hasattr(module, "__path__"):
            return name
    return target


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


class PluginModules:
    """The plugin that owns each module, and the declarations that each module made while it was imported.

    ``loaded``: plugins whose hooks were called.
    ``version``: a counter of changes.
    """

    def __init__(self) -> None:
        self._find: Callable[[], Mapping[str, str]] | None = None
        self._installed: Mapping[str, str] | None = None
        self._targets: dict[str, str] = {}
        self._built_in: tuple[str, ...] = ()
        self._owners: dict[str, str | None] = {}
        self._declared: dict[str, list[tuple[Any, Any]]] = {}
        self.loaded: set[str] = set()
        self.version = 0

    def set_finder(self, find: Callable[[], Mapping[str, str]], built_in: Mapping[str, str]) -> None:
        """Install the callback that reads the entry points (plugin name by module). It is called once."""
        self._find = find
        self._built_in = tuple(built_in)
        self._targets.update(built_in)

    def add(self, target: str, plugin: str) -> None:
        """Record the module of a plugin that is loaded by hand."""
        self._targets.setdefault(target, plugin)
        self._owners.clear()

    def remove(self, plugin: str) -> None:
        """Remove a plugin that was loaded by hand. Its modules' declarations are used when it is loaded again."""
        installed = self._installed or {}
        self._targets = {
            target: name
            for target, name in self._targets.items()
            if name != plugin or target in self._built_in or target in installed
        }
        self.loaded.discard(plugin)
        self._owners.clear()
        self.version += 1

    def mark_loaded(self, plugin: str) -> None:
        """Record that a plugin was loaded, or failed to load."""
        self.loaded.add(plugin)
        self.version += 1

    def owner(self, module: str) -> str | None:
        """Return the name of the plugin that a module belongs to, or None.

        A plugin's modules are those of the package that its entry point names, but for its tests and examples.
        """
        if module == "__main__" or (self._installed is not None and module in self._owners):
            return self._owners.get(module)
        if module.partition(".")[0] == "fluidlite":
            return next((self._targets[target] for target in self._built_in if _within(module, target)), None)
        if self._installed is None and self._find is not None:
            self._installed = dict(self._find())
            self._targets = {**self._installed, **self._targets}
        plugin = self._owners[module] = self._owner(module)
        return plugin

    def _owner(self, module: str) -> str | None:
        if any(part in _TESTS or part.startswith("test_") for part in module.split(".")[1:]):
            return None
        targets = [target for target in self._targets if _within(module, target)]
        if targets:
            return self._targets[max(targets, key=len)]
        return min((name for target, name in self._targets.items() if _within(module, _root(target))), default=None)

    def being_imported(self, target: str) -> bool:
        """Whether a module of a plugin's package is being imported now: its hooks may not be defined yet."""
        package = target if target in self._built_in else _root(target)
        return any(
            _within(name, package) and getattr(getattr(module, "__spec__", None), "_initializing", False)
            for name, module in list(sys.modules.items())
        )

    def declare(self, thing: Any, frame: FrameType) -> str | None:
        """Record a frame's declaration; return the plugin whose hooks decide on it, or None: it takes effect at once.

        A plugin's hooks decide on the top-level declarations of its modules.
        """
        module_frame: FrameType | None = frame
        while module_frame is not None and module_frame.f_code.co_name != "<module>":
            module_frame = module_frame.f_back
        if module_frame is None:
            return None
        module = module_frame.f_globals.get("__name__", "__main__")
        if module == "__main__" or (module.startswith("fluidlite.") and self.owner(module) is None):
            return None
        self._declared.setdefault(module, []).append((thing, module_frame.f_globals))
        self.version += 1
        return self.owner(module)

    def declared(self, plugin: str) -> list[Any]:
        """The declarations that a plugin's modules made when they were last imported."""
        declarations: list[Any] = []
        for module, things in list(self._declared.items()):
            loaded_module = sys.modules.get(module)
            if loaded_module is not None and self.owner(module) == plugin:
                declarations.extend(thing for thing, names in things if names is vars(loaded_module))
        return declarations


plugin_modules = PluginModules()
