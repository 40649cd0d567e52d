"""Fluid's ``layers.device``."""

from __future__ import annotations

from fluidlite.compat.installation import cpu_places, cuda_places
from fluidlite.layer_helper import refuse
from fluidlite.platform.place import Place

__all__ = ["get_places"]


def get_places(device_count: int | None = None, device_type: str | None = None) -> list[Place]:
    """Return places to run on.

    device_count: Default (None or 0): all
    device_type: ``"CPU"`` or ``"CUDA"``; default: the host's
    """
    kind = "CPU" if device_type is None else str(device_type).upper()
    if kind not in ("CPU", "CUDA", "GPU"):
        refuse("device_type", device_type, "'CPU' or 'CUDA'")
    if kind == "CPU":
        return cpu_places(device_count or None)
    return cuda_places()[: device_count or None]
