"""Reports of places and plugins as plain data, for the command line and for scripts."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import NUMPY
from fluidlite.platform.device_registry import devices
from fluidlite.plugin_loader import PluginRecord, plugins


def places_report() -> list[dict[str, Any]]:
    """A dict for each usable place, each lost place, and each kind that cannot be used."""
    rows: list[dict[str, Any]] = []
    for place in devices.places():
        unit = devices.unit(place)
        info = unit.info
        rows.append(
            {
                "place": str(place),
                "name": info.name,
                "usable": True,
                "memory": info.memory,
                "capabilities": list(unit.capabilities()),
                "dtypes": list(info.dtypes),
                "lacks": [dtype for dtype in NUMPY if dtype not in info.dtypes],
                "host": info.host,
                "tolerance": dict(info.tolerance),
                "notes": devices.notes(place.kind),
            }
        )
    for unit in devices.units():
        if unit.lost is not None:
            rows.append({"place": str(unit.place), "usable": False, "reason": f"it was lost: {unit.lost}"})
    for kind, reason in devices.kinds().items():
        if reason:
            rows.append({"place": kind, "usable": False, "reason": reason})
    return rows


def plugins_report() -> list[dict[str, Any]]:
    """A dict for each plugin, built-in ones first: its registrations, or the reason why it was not loaded."""
    return [_plugin(record) for record in plugins()]


def _plugin(record: PluginRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "version": record.version,
        "api": record.api,
        "state": record.state,
        "built_in": record.built_in,
        "origin": record.origin,
        "brought": {kind: names for kind, names in record.brought.items() if names},
        "error": record.error,
        "traceback": record.traceback,
        "notes": list(record.notes),
    }


def in_bytes(number: int | None) -> str:
    """Format a number of bytes with a unit."""
    if number is None:
        return "unknown"
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
