"""NULL: a device that schedules and counts, and computes nothing.

Its allocations have sizes but no bytes, its kernels are prepared and launched but do nothing, and reads return zeros.
It measures the cost of the framework itself, and counts launches, copies and memory.
"""

from __future__ import annotations

from typing import Any

from fluidlite.devices.null.device import NullDevice
from fluidlite.plugin import hookimpl

__all__ = ["NullDevice", "register_devices"]


@hookimpl
def register_devices(register: Any) -> None:
    """Register the device; it is used only where it is named, and is not among ``places()``."""
    register(NullDevice())
