"""The default executor of sub-blocks. It is registered here, since the package of executors imports this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.base.plugin_callback import ensure_loaded
from fluidlite.platform.place import Place

MakeExecutor = Callable[[Place], Any]
"""Makes an executor of a place: ``run(program, feed, fetch_list, scope=...)``."""

_default: list[MakeExecutor] = []


def set_default_executor(make: MakeExecutor) -> None:
    """Set the function that makes executors of sub-blocks for runs that provide none."""
    _default[:] = [make]


def default_executor(place: Place) -> Any:
    """Return a default executor of a place."""
    if not _default:
        ensure_loaded()
    return _default[0](place)
