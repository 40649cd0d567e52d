"""How operators that run sub-blocks come by executors, which lie above them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.base.plugin_callback import ensure_loaded
from fluidlite.platform.place import Place

MakeExecutor = Callable[[Place], Any]
"""Makes an executor of a place: ``run(program, feed, fetch_list, scope=...)``."""

_default: list[MakeExecutor] = []


def set_default(make: MakeExecutor) -> None:
    """Say how the executors of sub-blocks are made, where the run has no way of its own."""
    _default[:] = [make]


def default_executor(place: Place) -> Any:
    """An executor of a place, as they are by default."""
    if not _default:
        ensure_loaded()
    return _default[0](place)
