"""The place of executors that are made for the host, which :func:`host_runs_on` replaces to run a script elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike

_substitutes: list[Place] = []


def resolve_place(place: PlaceLike) -> Place:
    """Return the place of an executor that is made for ``place``."""
    requested = devices.unit(place).place
    return _substitutes[-1] if _substitutes and requested == devices.host() else requested


@contextmanager
def host_runs_on(place: PlaceLike) -> Iterator[None]:
    """Make executors of the host run on ``place`` instead, in all threads, inside the block.

    Raises PlaceError or DeviceUnavailable if the place cannot be used.
    """
    _substitutes.append(devices.unit(place).place)
    try:
        yield
    finally:
        _substitutes.pop()
