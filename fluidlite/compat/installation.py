"""Facts of the installation that Fluid's programs query: lists of places, the version, the dygraph mode."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from fluidlite.base.arguments import as_int
from fluidlite.base.errors import DeviceUnavailable, ProgramError
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import CPUPlace, CUDAPinnedPlace, CUDAPlace, Place

FLUID = (1, 8, 5)
"""The supported version of Fluid."""

_VERSION = re.compile(r"\d+(\.\d+){0,3}\Z")


def place_count(place: Place, count: int | None = None) -> int:
    """The number of places of one kind that a program uses.

    ``count``: default: the devices of that kind; on the host Fluid's ``CPU_NUM``, else one for each core.
    """
    if count is None:
        count = _cores() if place == devices.host() else sum(other.kind == place.kind for other in devices.places())
    number = as_int(count)
    if number is None or number < 1:
        raise ProgramError(f"the number of places is {count!r}; expected an int of 1 or more")
    return number


def _cores() -> int:
    """The default number of host places: the environment variable ``CPU_NUM``, else the number of cores."""
    setting = os.environ.get("CPU_NUM")
    if setting is None:
        return os.cpu_count() or 1
    if not re.fullmatch(r"\s*[0-9]+\s*", setting):
        raise ProgramError(f"the variable CPU_NUM is {setting!r}; expected an int of 1 or more")
    return int(setting)


def places_like(place: Place, count: int) -> list[Place]:
    """Return that many places of one kind; the host's place stands for each of its own."""
    if place == devices.host():
        return [place] * count
    return [Place(place.kind, index) for index in range(count)]


def cpu_places(device_count: int | None = None) -> list[Place]:
    """Return a list of ``CPUPlace()``; default length: Fluid's ``CPU_NUM``, else the number of cores."""
    return [CPUPlace()] * place_count(CPUPlace(), device_count)


def cuda_places(device_ids: Sequence[int] | None = None) -> list[Place]:
    """Return a ``CUDAPlace`` for each id; default: for each usable device.

    Raises
    ------
    DeviceUnavailable
        If there is none.
    """
    usable = [place for place in devices.places() if place.kind == CUDAPlace().kind]
    if not usable:
        reason = devices.kinds().get(CUDAPlace().kind) or "no device was found"
        raise DeviceUnavailable(f"no {CUDAPlace().kind} place can be used here: {reason}")
    return usable if device_ids is None else [CUDAPlace(index) for index in device_ids]


def cuda_pinned_places(device_count: int | None = None) -> list[Place]:
    """Return a list of ``CUDAPinnedPlace()``; default length: Fluid's ``CPU_NUM``, else the number of cores."""
    return [CUDAPinnedPlace()] * place_count(CPUPlace(), device_count)


def in_dygraph_mode() -> bool:
    """Return False: layers append operators to a program and never run eagerly."""
    return False


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Raise ProgramError unless the supported version of Fluid is between these.

    Parameters
    ----------
    min_version : str
        Such as ``"1.6.0"``.
    max_version : str, optional
    """
    minimum = _numbers("min_version", min_version)
    maximum = None if max_version is None else _numbers("max_version", max_version)
    supported = (*FLUID, 0)
    if supported < minimum or (maximum is not None and supported > maximum):
        needed = f"{min_version} or later" if max_version is None else f"{min_version} to {max_version}"
        raise ProgramError(
            f"the program requires Fluid {needed}; fluidlite understands programs of Fluid {'.'.join(map(str, FLUID))}"
        )


def _numbers(argument: str, text: str) -> tuple[int, ...]:
    if not isinstance(text, str):
        raise TypeError(f"require_version: argument {argument!r} is {text!r}; expected a text such as '1.6.0'")
    if not _VERSION.match(text):
        raise ValueError(f"require_version: argument {argument!r} is {text!r}; expected numbers such as '1.6.0'")
    numbers = tuple(map(int, text.split(".")))
    return numbers + (0,) * (4 - len(numbers))
