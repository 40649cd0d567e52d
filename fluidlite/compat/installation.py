"""What Fluid's programs ask of the installation: lists of places, a version, whether layers run at once."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from fluidlite.base.arguments import as_whole
from fluidlite.base.errors import DeviceUnavailable, ProgramError
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import CPUPlace, CUDAPinnedPlace, CUDAPlace, Place

FLUID = (1, 8, 5)
"""The version of Fluid whose programs are understood."""

_VERSION = re.compile(r"\d+(\.\d+){0,3}\Z")


def place_count(place: Place, count: int | None = None) -> int:
    """How many places of one kind a program is to use.

    ``count``: default: the devices of that kind; on the host Fluid's ``CPU_NUM``, else one for each core.
    """
    if count is None:
        count = _cores() if place == devices.host() else sum(found.kind == place.kind for found in devices.places())
    found = as_whole(count)
    if found is None or found < 1:
        raise ProgramError(f"the number of places is {count!r}; expected an int of 1 or more")
    return found


def _cores() -> int:
    """How many places of the host a program uses that does not say it."""
    said = os.environ.get("CPU_NUM")
    if said is None:
        return os.cpu_count() or 1
    if not re.fullmatch(r"\s*[0-9]+\s*", said):
        raise ProgramError(f"the variable CPU_NUM is {said!r}; expected an int of 1 or more")
    return int(said)


def places_like(place: Place, count: int) -> list[Place]:
    """Return that many places of one kind; the host's place stands for each of its own."""
    if place == devices.host():
        return [place] * count
    return [Place(place.kind, index) for index in range(count)]


def cpu_places(device_count: int | None = None) -> list[Place]:
    """Return ``CPUPlace()`` so many times; default: Fluid's ``CPU_NUM``, else one for each core."""
    return [CPUPlace()] * place_count(CPUPlace(), device_count)


def cuda_places(device_ids: Sequence[int] | None = None) -> list[Place]:
    """Return a ``CUDAPlace`` for each id; default: for each device that can be used.

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
    """Return ``CUDAPinnedPlace()`` so many times; default: Fluid's ``CPU_NUM``, else one for each core."""
    return [CUDAPinnedPlace()] * place_count(CPUPlace(), device_count)


def in_dygraph_mode() -> bool:
    """Whether layers run at once; they append operators to a program, so this is False."""
    return False


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Raise ProgramError unless the version of Fluid that is understood lies between these.

    Parameters
    ----------
    min_version : str
        Such as ``"1.6.0"``.
    max_version : str, optional
    """
    least = _numbers("min_version", min_version)
    most = None if max_version is None else _numbers("max_version", max_version)
    have = (*FLUID, 0)
    if have < least or (most is not None and have > most):
        wanted = f"{min_version} or later" if max_version is None else f"{min_version} to {max_version}"
        raise ProgramError(
            f"the program requires Fluid {wanted}; fluidlite understands programs of Fluid {'.'.join(map(str, FLUID))}"
        )


def _numbers(argument: str, text: str) -> tuple[int, ...]:
    if not isinstance(text, str):
        raise TypeError(f"require_version: argument {argument!r} is {text!r}; expected a text such as '1.6.0'")
    if not _VERSION.match(text):
        raise ValueError(f"require_version: argument {argument!r} is {text!r}; expected numbers such as '1.6.0'")
    numbers = tuple(map(int, text.split(".")))
    return numbers + (0,) * (4 - len(numbers))
