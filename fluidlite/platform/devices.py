"""The table of devices: which kinds are registered, which are usable, and why others are not."""

from __future__ import annotations

import difflib
import threading
from dataclasses import dataclass, field
from typing import Any

from fluidlite.base.bell import ensure_loaded
from fluidlite.base.epoch import epoch
from fluidlite.base.errors import DeviceError, DeviceLost, DeviceUnavailable, FluidError, PlaceError, RegistryError
from fluidlite.platform.device import DeviceInfo
from fluidlite.platform.place import Place, PlaceLike


class Unit:
    """One usable device: its facts and capabilities, asked for once.

    Attributes
    ----------
    place : Place
    device : Device
    info : DeviceInfo
    array : ArrayNamespace or None
    dialect : Dialect or None
    """

    def __init__(self, place: Place, device: Any, info: DeviceInfo) -> None:
        self.place = place
        self.device = device
        self.info = info
        if not isinstance(info, DeviceInfo):
            raise DeviceError(f"info() returned {type(info).__name__}; expected a DeviceInfo")
        self.array: Any = device.array(place.index)
        self.dialect: Any = device.dialect(place.index)
        if self.dialect is not None:
            _check_dialect(self.dialect)
        self._lost: str | None = None
        self.checked = False
        self.removed = False

    @property
    def lost(self) -> str | None:
        """Why the place is poisoned, or None."""
        return self._lost

    @lost.setter
    def lost(self, why: str | None) -> None:
        self._lost = why
        epoch.begin()

    def capabilities(self) -> tuple[str, ...]:
        """Names of the capabilities it has, in the order in which generic kernels are tried."""
        found = []
        if self.array is not None:
            found.append("array")
        if self.dialect is not None:
            found.insert(0 if getattr(self.dialect, "preferred", False) else 1, "dialect")
        return (*found, "memory")

    def raise_if_lost(self) -> None:
        """Raise DeviceLost if the device is gone."""
        if self._lost is not None:
            raise DeviceLost(f"{self.place} is lost: {self._lost}\n  Other places go on; restart to use {self.place}.")


_WORDS = ("kernel", "function", "buffer", "constant", "each", "restrict", "prologue")
_TYPES = ("int32", "int64", "uint8", "uint32", "uint64", "float32")


def _check_dialect(dialect: Any) -> None:
    missing = [f"words[{name!r}]" for name in _WORDS if name not in dialect.words]
    missing += [f"types[{name!r}]" for name in _TYPES if name not in dialect.types]
    if missing:
        raise DeviceError(f"its dialect lacks {', '.join(missing)}; start from DialectBase's and change what differs")


@dataclass(eq=False)
class _Entry:
    device: Any
    origin: str
    units: list[Unit] | None = None
    reason: str = ""
    notes: list[str] = field(default_factory=list)


class DeviceTable:
    """Devices by kind. Nothing enumerates kinds: what is registered is what there is."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.RLock()
        self.generation = 0

    def add(self, device: Any, origin: str = "") -> None:
        """Register a device for its kind; a second one for the same kind is an error."""
        kind = Place(device.kind).kind
        with self._lock:
            other = self._entries.get(kind)
            if other is not None and other.device is not device:
                raise RegistryError(f"device kind {kind!r} is registered twice: by {other.origin} and by {origin}")
            self._entries.setdefault(kind, _Entry(device, origin))
            self.generation += 1
            epoch.begin()

    def remove(self, device: Any) -> None:
        """Take a device out again."""
        with self._lock:
            entry = self._entries.pop(device.kind, None)
            for unit in (entry.units or ()) if entry is not None else ():
                unit.removed = True
            self.generation += 1
            epoch.begin()

    def unit(self, place: PlaceLike) -> Unit:
        """The usable device of a place.

        Raises
        ------
        PlaceError
            No device of that kind is registered, or the index is too high.
        DeviceUnavailable
            The kind is known, but cannot be used here; the message is the reason.
        """
        ensure_loaded()
        place = Place.parse(place)
        entry = self._entries.get(place.kind)
        if entry is None:
            near = difflib.get_close_matches(place.kind, self._entries, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise PlaceError(
                f"no device serves place {str(place)!r}{hint}"
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

    def places(self) -> list[Place]:
        """Every usable place, in the order of registration."""
        ensure_loaded()
        return [unit.place for entry in list(self._entries.values()) for unit in self._probed(entry)]

    def kinds(self) -> dict[str, str]:
        """Every registered kind with the reason why it cannot be used; "" for a usable one."""
        ensure_loaded()
        for entry in list(self._entries.values()):
            self._probed(entry)
        return {kind: entry.reason for kind, entry in self._entries.items()}

    def notes(self, kind: str) -> list[str]:
        """What was odd when the kind was probed."""
        return list(self._entries[kind].notes) if kind in self._entries else []

    def host(self) -> Place:
        """The place whose memory is the host's: where feeds come from and what fallback uses."""
        ensure_loaded()
        for entry in list(self._entries.values()):
            for unit in self._probed(entry):
                if unit.info.host:
                    return unit.place
        raise DeviceUnavailable("no device says that its memory is the host's (DeviceInfo.host)")


devices = DeviceTable()


def places() -> list[Place]:
    """Every place that can be used here, plugins' included."""
    return devices.places()
