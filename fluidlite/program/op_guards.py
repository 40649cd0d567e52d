"""``device_guard`` and ``name_scope``: the place and the name scope of operators appended in a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fluidlite.base.arguments import text
from fluidlite.base.context_value import context_value
from fluidlite.platform.place import Place, PlaceLike

_namescope: ContextVar[str] = ContextVar("name_scope", default="")
_device: ContextVar[str | None] = ContextVar("device_guard", default=None)


@contextmanager
def device_guard(place: PlaceLike | None = None) -> Iterator[None]:
    """Operators that this thread appends inside run on ``place``; None: on the executor's place.

    The planner adds the copies between places, and ``explain`` shows them.
    """
    with context_value(_device, str(Place.parse(place)) if place is not None else None):
        yield


def current_device() -> str | None:
    """The place of the innermost ``device_guard``, as text."""
    return _device.get()


@contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Set the name scope, a label for readers, of the operators that this thread appends inside."""
    outer, label = _namescope.get(), text("the prefix of name_scope", prefix or "scope")
    with context_value(_namescope, f"{outer}/{label}" if outer else label):
        yield


def current_namescope() -> str:
    """The names of the open scopes, joined by slashes."""
    return _namescope.get()
