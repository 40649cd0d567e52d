"""``device_guard`` and ``name_scope``: the place and the name scope of operators appended in a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fluidlite.base.arguments import text
from fluidlite.platform.place import Place, PlaceLike

_namescopes: list[str] = []
_devices: list[str | None] = []


@contextmanager
def device_guard(place: PlaceLike | None = None) -> Iterator[None]:
    """Operators appended inside run on ``place``, whatever the executor's place; None: on the executor's place.

    The planner adds the copies between places, and ``explain`` shows them.
    """
    _devices.append(str(Place.parse(place)) if place is not None else None)
    try:
        yield
    finally:
        _devices.pop()


def current_device() -> str | None:
    """The place of the innermost ``device_guard``, as text."""
    return _devices[-1] if _devices else None


@contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Set the name scope, a label for readers, of the operators appended inside."""
    _namescopes.append(text("the prefix of name_scope", prefix or "scope"))
    try:
        yield
    finally:
        _namescopes.pop()


def current_namescope() -> str:
    """The names of the open scopes, joined by slashes."""
    return "/".join(_namescopes)
