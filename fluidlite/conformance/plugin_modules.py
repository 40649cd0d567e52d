"""Load plugins that are not installed: modules named on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from fluidlite import plugin_loader
from fluidlite.base.errors import FluidError


def load_plugin_modules(modules: Iterable[str]) -> list[str]:
    """Load plugins by module name; the current folder is searched, too.

    Parameters
    ----------
    modules : iterable of str
        ``"package.module"``, ``"package.module:object"``, or a path to a file ``"folder/module.py"``, whose folder is
        then searched first for imports. A plugin that an installed package has loaded already is not loaded again.

    Returns
    -------
    list of str
        The names of the modules.

    Raises
    ------
    FluidError
        A plugin cannot be loaded; the message ends with its traceback.
    """
    names = []
    loaded = {record.origin for record in plugin_loader.plugins()}
    for target in modules:
        name, folder = _module(target)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        names.append(name)
        if name in loaded:
            continue
        loaded.add(name)
        record = plugin_loader.load(name, name)
        if record.state != "loaded":
            plugin_loader.unload(name)
            raise FluidError(f"plugin {name!r} cannot be loaded: {record.error}\n{record.traceback.rstrip()}")
    return names


def _module(target: str) -> tuple[str, str]:
    """A module's name, and the folder that is searched first for it."""
    if not target.endswith(".py"):
        return target, os.getcwd()
    path = Path(target)
    if not path.is_file():
        raise FluidError(f"there is no plugin file {target}")
    return path.stem, str(path.resolve().parent)
