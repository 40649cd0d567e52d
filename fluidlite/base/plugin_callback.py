"""The callback that loads plugins, for packages below the loader: they call it before they look up devices or kernels.

Imports only go down, so they cannot import ``fluidlite.plugin_loader``; it registers itself here.
"""

from __future__ import annotations

from collections.abc import Callable

_load: Callable[[], None] | None = None


def set_loader(load: Callable[[], None] | None) -> None:
    """Install the callback that loads every plugin once."""
    global _load
    _load = load


def ensure_loaded() -> None:
    """Load the plugins, if that has not happened yet. Cheap afterwards."""
    if _load is not None:
        _load()
