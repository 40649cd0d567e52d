"""The device registry: registered kinds, usable devices, and the reasons why others cannot be used."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from fluidlite.base.absent import absent
from fluidlite.base.arguments import did_you_mean
from fluidlite.base.dtypes import ALL, ALL_FLOATS, HALVES
from fluidlite.base.errors import (
    DeviceError,
    DeviceLost,
    DeviceUnavailable,
    FluidError,
    OutOfMemoryError,
    PlaceError,
    RegistryError,
)
from fluidlite.base.fork import first_in_child, never_finalize, new_rlock
from fluidlite.base.invalidation import cache_version
from fluidlite.base.plugin_callback import ensure_loaded
from fluidlite.platform.device import DeviceBase, DeviceInfo
from fluidlite.platform.place import FLUID_PLACES, Place, PlaceLike


class Unit:
    """One usable device: its facts and capabilities, requested from the plugin once.

    ``lacks``: the dtypes that each capability does not support. In kernel languages half types are 16-bit integers.
    ``array_dtypes``: the dtypes that the array namespace supports.
    ``supports``: ``Device.supports``; None if the device refuses nothing.
    """

    def __init__(self, place: Place, device: Any, info: DeviceInfo) -> None:
        self.place = place
        self.device = device
        self.info = info
        _check_info(info)
        self.array: Any = device.array(place.index)
        if self.array is not None:
            checked_result(f"array({place.index})", self.array, "xp", "wrap")
        self.language: Any = device.language(place.index)
        if self.language is not None:
            checked_result(f"language({place.index})", self.language, "keywords", "types", "compile", "launch")
            _check_language(self.language)
        words = getattr(self.language, "types", ())
        self.lacks: Mapping[str, frozenset[str]] = {
            "array": frozenset(getattr(self.array, "lacks", ())),
            "language": frozenset(each for each in ALL if ("int16" if each in HALVES else each) not in words),
        }
        self.array_dtypes = tuple(dtype for dtype in info.dtypes if dtype not in self.lacks["array"])
        refuses_nothing = getattr(type(device), "supports", None) in (None, DeviceBase.supports)
        self.supports: Any = None if refuses_nothing else device.supports
        self._lost: str | None = None
        self._process = os.getpid()
        self.checked = False
        self.removed = False

    @property
    def lost(self) -> str | None:
        """The reason why the device is lost and its place unusable, or None."""
        return self._lost

    @lost.setter
    def lost(self, why: str | None) -> None:
        self._lost = why
        cache_version.invalidate()

    @property
    def inherited(self) -> bool:
        """Whether the device was used before a fork that it does not support, and this process is the child."""
        return not self.info.fork_safe and self._process != os.getpid()

    def disown(self) -> None:
        """In a forked child: leave the device to the parent. Its objects are neither used nor released here."""
        self.lost = (
            f"this process is a fork of process {self._process}, which has used it"
            '\n  Do: start the process with multiprocessing\'s "spawn" method, or use the place in the child only'
        )
        never_finalize(self)

    def capabilities(self) -> tuple[str, ...]:
        """Names of the device's capabilities, in the order in which generic kernels are tried."""
        names = []
        if self.array is not None:
            names.append("array")
        if self.language is not None:
            names.insert(0 if getattr(self.language, "preferred", False) else 1, "language")
        return (*names, "memory")

    def fail(self, exc: Exception, what: str) -> NoReturn:
        """Re-raise a plugin's exception with the place and the action ``what``; DeviceLost makes the place unusable."""
        if isinstance(exc, DeviceLost):
            self.lost = self.lost or str(exc)
            raise DeviceLost(f"{self.place} was lost while {what}: {exc}") from exc
        if type(exc) is DeviceError and str(self.place) not in str(exc):
            raise DeviceError(f"{self.place} failed while {what}: {exc}") from exc
        if isinstance(exc, FluidError):
            raise exc
        if isinstance(exc, MemoryError):
            raise OutOfMemoryError(f"{self.place} is out of memory while {what}: {exc}") from exc
        raise DeviceError(f"{self.place} failed while {what}: {type(exc).__name__}: {exc}") from exc

    def raise_if_lost(self) -> None:
        if self._lost is not None:
            advice = "" if self.inherited else f"\n  Other places go on; restart to use {self.place}."
            raise DeviceLost(f"{self.place} is lost: {self._lost}{advice}")


_PLACE_NAME = re.compile(r"[A-Z][A-Za-z0-9]*Place")
_KEYWORDS = ("kernel", "function", "buffer", "constant", "each", "restrict", "prologue")
_TYPES = ("int32", "int64", "uint8", "uint32", "uint64", "float32")


def checked_result(what: str, thing: Any, *names: str) -> Any:
    """Check and return the result of a plugin's function.

    Raises DeviceError if it lacks an attribute of ``names``: a return is missing, or it is of the wrong class.
    """
    lacks = [name for name in names if not hasattr(thing, name)]
    if lacks:
        raise DeviceError(f"{what} returned {thing!r:.80}; expected an object that has {', '.join(lacks)}")
    return thing


def _check_info(info: Any) -> None:
    if not isinstance(info, DeviceInfo):
        raise DeviceError(f"info() returned {type(info).__name__}; expected a DeviceInfo")
    for name in ("alignment", "queues", "memory"):
        number = getattr(info, name)
        if number is None and name == "memory":
            continue
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise DeviceError(f"info() says {name}={number!r}; expected an integer of 1 or more")
    if info.alignment & (info.alignment - 1):
        raise DeviceError(f"info() says alignment={info.alignment}; expected a power of two")
    unknown = [dtype for dtype in info.dtypes if dtype not in ALL]
    if unknown or isinstance(info.dtypes, str):
        raise DeviceError(f"info() says dtypes={info.dtypes!r}; expected a tuple of {', '.join(ALL)}")
    if not isinstance(info.tolerance, Mapping):
        raise DeviceError(f"info() says tolerance={info.tolerance!r}; expected a mapping from dtypes to numbers")
    for dtype, limit in info.tolerance.items():
        if dtype not in ALL_FLOATS or not isinstance(limit, float) or not 0 < limit < 1:
            names = ", ".join(ALL_FLOATS)
            raise DeviceError(f"info() says tolerance of {dtype!r}: {limit!r}; expected {names}: between 0.0 and 1.0")


def _check_language(language: Any) -> None:
    missing = [f"keywords[{name!r}]" for name in _KEYWORDS if name not in language.keywords]
    missing += [f"types[{name!r}]" for name in _TYPES if name not in language.types]
    if missing:
        raise DeviceError(
            f"its kernel language lacks {', '.join(missing)}; start from KernelLanguageBase's and change what differs"
        )


@dataclass(eq=False)
class _Entry:
    device: Any
    origin: str
    units: list[Unit] | None = None
    reason: str = ""
    notes: list[str] = field(default_factory=list)


class DeviceTable:
    """Devices by kind. The set of kinds is open: it is what plugins registered."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._units: dict[PlaceLike, Unit] = {}  # cache by place or text, cleared when a device is added or removed
        self._lock = new_rlock()
        self.generation = 0

    def add(self, device: Any, origin: str = "") -> None:
        """Register a device for its kind; a second one for the same kind is an error."""
        kind = Place(device.kind).kind
        with self._lock:
            other = self._entries.get(kind)
            if other is not None and other.device is not device:
                raise RegistryError(f"device kind {kind!r} is registered twice: by {other.origin} and by {origin}")
            self._check_place_name(kind, device, origin)
            self._entries.setdefault(kind, _Entry(device, origin))
            self._units.clear()
            self.generation += 1
            cache_version.invalidate()

    def _check_place_name(self, kind: str, device: Any, origin: str) -> None:
        name = place_name_of(device)
        if not name:
            return
        if not isinstance(name, str) or not _PLACE_NAME.fullmatch(name):
            raise RegistryError(f"place_name of device {kind!r} is {name!r}; expected a word such as 'AcmePlace'")
        if FLUID_PLACES.get(name, kind) != kind:
            raise RegistryError(f"place_name {name!r} of device {kind!r}, by {origin}, is the name of another place")
        for other, entry in self._entries.items():
            if other != kind and place_name_of(entry.device) == name:
                raise RegistryError(f"place_name {name!r} is registered twice: by {entry.origin} and by {origin}")

    def kind_named(self, place_name: str) -> str | None:
        """The kind of the device with this ``place_name``, or None."""
        ensure_loaded()
        for kind, entry in list(self._entries.items()):
            if place_name_of(entry.device) == place_name:
                return kind
        return None

    def remove(self, device: Any) -> None:
        with self._lock:
            entry = self._entries.pop(device.kind, None)
            self._units.clear()
            for unit in (entry.units or ()) if entry is not None else ():
                unit.removed = True
            self.generation += 1
            cache_version.invalidate()

    def unit(self, place: PlaceLike) -> Unit:
        """The usable device of a place.

        Raises PlaceError if no device of that kind is registered, or the index is too high.
        Raises DeviceUnavailable if the kind is registered but cannot be used; the message is the reason.
        """
        cached = self._units.get(place) if isinstance(place, (Place, str)) else None
        if cached is not None:
            return cached
        ensure_loaded()
        requested, place = place, Place.parse(place)
        entry = self._entries.get(place.kind)
        if entry is None:
            raise PlaceError(
                f"no device serves place {str(place)!r}{did_you_mean(place.kind, self._entries, 1)}"
                f" (known kinds: {', '.join(sorted(self._entries)) or 'none'})"
                "\n  Do: install the plugin that brings it; `fluidlite plugins` shows what was left out and why"
            )
        units = self._probed(entry)
        if entry.reason:
            raise DeviceUnavailable(f"{place.kind} cannot be used here: {entry.reason}")
        if place.index >= len(units):
            has = f"{len(units)} device{'s' if len(units) != 1 else ''}"
            note = f" ({'; '.join(entry.notes)})" if entry.notes else ""
            raise PlaceError(f"place {place} does not exist: kind {place.kind!r} has {has}{note}")
        with self._lock:
            if self._entries.get(place.kind) is entry:
                self._units[requested] = units[place.index]
        return units[place.index]

    def _probed(self, entry: _Entry) -> list[Unit]:
        with self._lock:
            if entry.units is not None:
                return entry.units
            units: list[Unit] = []
            kind = entry.device.kind
            try:
                count = entry.device.probe()
                if not isinstance(count, int) or count < 0:
                    raise DeviceError(f"probe() returned {count!r}, not a count")
            except FluidError as exc:
                entry.reason = str(exc)
                count = 0
            except Exception as exc:
                entry.reason = f"probe() raised {type(exc).__name__}: {exc}"
                count = 0
            for index in range(count):
                try:
                    units.append(Unit(Place(kind, index), entry.device, entry.device.info(index)))
                except Exception as exc:
                    entry.notes.append(f"probe() said {count}, but device {index} raised {type(exc).__name__}: {exc}")
                    break
            if count and not units:
                entry.reason = entry.notes[0]
            elif not count and not entry.reason:
                entry.reason = "no device found"
            entry.units = units
            return units

    def leave_to_parent(self) -> None:
        """In a forked child: disown the devices that the parent has probed, except those that are fork-safe."""
        for entry in self._entries.values():
            for unit in entry.units or ():
                if unit.inherited:
                    unit.disown()

    def places(self) -> list[Place]:
        """Every usable place that computes, in the order of registration, without lost ones."""
        return [unit.place for unit in self.units() if unit.lost is None and unit.info.computes]

    def units(self) -> list[Unit]:
        """Every device that was usable when it was probed, including devices lost since."""
        ensure_loaded()
        return [unit for entry in list(self._entries.values()) for unit in self._probed(entry)]

    def kinds(self) -> dict[str, str]:
        """Every registered kind with the reason why it cannot be used; "" for a usable one."""
        ensure_loaded()
        for entry in list(self._entries.values()):
            self._probed(entry)
        return {kind: entry.reason for kind, entry in self._entries.items()}

    def computes(self, kind: str) -> bool:
        """Whether a kind's devices compute (``DeviceInfo.computes``); True for an unknown kind."""
        entry = self._entries.get(kind)
        return entry is None or all(unit.info.computes for unit in self._probed(entry))

    def notes(self, kind: str) -> list[str]:
        """Problems found when the kind was probed."""
        return list(self._entries[kind].notes) if kind in self._entries else []

    def host(self) -> Place:
        """The place with host memory: the source of feeds and the fallback place."""
        ensure_loaded()
        for entry in list(self._entries.values()):
            for unit in self._probed(entry):
                if unit.info.host:
                    return unit.place
        raise DeviceUnavailable("no device says that its memory is the host's (DeviceInfo.host)")


devices = DeviceTable()
first_in_child(devices.leave_to_parent)


def place_name_of(device: Any) -> Any:
    """The ``place_name`` of a device or of its own class; a subclass does not inherit it, since its kind differs."""
    return getattr(device, "__dict__", {}).get("place_name", vars(type(device)).get("place_name", ""))


def places() -> list[Place]:
    """Every usable place that computes, including those of plugins."""
    return devices.places()


def named_place(name: str, module: str) -> Callable[[int], Place]:
    """Return the constructor of places of the device with ``place_name`` ``name``, for a module's ``__getattr__``.

    It returns ``Place(kind, index)``; whether the device is available is checked at its first use.
    Raises AttributeError if no loaded plugin has a device of that name.
    """
    if not _PLACE_NAME.fullmatch(name):
        raise absent(module, name)
    kind = devices.kind_named(name)
    if kind is None:
        guess = name.removesuffix("Place").lower()
        raise AttributeError(
            f"module {module!r} has no attribute {name!r}: no plugin that is loaded brings a device of that name"
            f"\n  Do: pip install fluidlite-{guess}, if that is the plugin; `fluidlite plugins` shows what was left out"
            " and why"
        )

    def make(index: int = 0) -> Place:
        return Place(kind, index)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Return ``Place({kind!r}, index)``; whether the device is available is checked at its first use."
    return make
