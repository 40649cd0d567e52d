"""The loader's bell: lower floors ring it before they look at devices or kernels.

The loader sits on the ninth floor, and imports only go down; so the floors below it
know a callback instead. It is rung at the first use of places or of the registry.
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
