"""Tolerances of a place's results, and the error for results beyond them."""

from __future__ import annotations

from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import PlaceLike

_VALUE_TOLERANCES = {"float64": 1e-10, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
_GRADIENT_TOLERANCES = {"float64": 1e-6, "float32": 5e-5, "float16": 6e-3, "bfloat16": 4e-2}
"""Relative tolerances by the least precise dtype of a case; a device may raise them."""


class ConformanceError(AssertionError):
    """A place's result differs from the reference."""


def tolerance(place: PlaceLike, dtype: str) -> float:
    """The relative tolerance of values: the framework's, or the device's own if that is looser."""
    return _max_tolerance(place, dtype, _VALUE_TOLERANCES)


def gradient_tolerance(place: PlaceLike, dtype: str) -> float:
    """The relative tolerance of gradients, which is higher, since finite differences are less exact."""
    return _max_tolerance(place, dtype, _GRADIENT_TOLERANCES)


def tolerances(place: PlaceLike) -> dict[str, dict[str, tuple[float, float]]]:
    """The relative tolerances by kind and dtype: the framework's, and the one used on a place."""
    return {
        kind: {dtype: (default, _max_tolerance(place, dtype, table)) for dtype, default in table.items()}
        for kind, table in (("values", _VALUE_TOLERANCES), ("gradients", _GRADIENT_TOLERANCES))
    }


def _max_tolerance(place: PlaceLike, dtype: str, table: dict[str, float]) -> float:
    return max(table[dtype], devices.unit(place).info.tolerance.get(dtype, 0.0))
