"""Which place an executor gets that is made for the host: the host, or where somebody wants a script to run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike

_instead: list[Place] = []


def resolved(place: PlaceLike) -> Place:
    """The place of an executor that is asked for on ``place``."""
    found = devices.unit(place).place
    return _instead[-1] if _instead and found == devices.host() else found


@contextmanager
def host_runs_on(place: PlaceLike) -> Iterator[None]:
    """Make executors for a place that are made for the host inside the block, in whichever thread.

    Raises PlaceError or DeviceUnavailable if the place cannot be used.
    """
    _instead.append(devices.unit(place).place)
    try:
        yield
    finally:
        _instead.pop()
