"""OpenCL as a plugin: every OpenCL 1.2 device that pyopencl finds, with a pool, four queues and a kernel language."""

from __future__ import annotations

from typing import Any

from fluidlite.devices.opencl.device import OpenCLDevice
from fluidlite.plugin import hookimpl

__all__ = ["OpenCLDevice", "register_devices"]


@hookimpl
def register_devices(register: Any) -> None:
    """Register OpenCL; its driver is loaded when a place is first used."""
    register(OpenCLDevice())
