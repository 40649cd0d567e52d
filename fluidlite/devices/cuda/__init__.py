"""CUDA as a plugin: CuPy's memory, streams and arrays, and CUDA C through NVRTC."""

from __future__ import annotations

from typing import Any

from fluidlite.devices.cuda.device import CUDADevice
from fluidlite.plugin import hookimpl

__all__ = ["CUDADevice", "register_devices"]


@hookimpl
def register_devices(register: Any) -> None:
    """Register CUDA; its driver is loaded when a place is first used."""
    register(CUDADevice())
