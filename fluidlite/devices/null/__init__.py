"""NULL: a device that schedules and counts, and computes nothing.

Its memory has sizes and no bytes, its kernels are prepared and launched and do nothing, and what is read from it are
zeros. What is left is what the framework itself costs, and what it would do: launches, copies, memory.
"""

from __future__ import annotations

from typing import Any

from fluidlite.devices.null.device import NullDevice
from fluidlite.plugin import hookimpl

__all__ = ["NullDevice", "register_devices"]


@hookimpl
def register_devices(register: Any) -> None:
    """Hand the device over; it is not among ``places()``, and is used where it is named."""
    register(NullDevice())
