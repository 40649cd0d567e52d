"""It registers a kernel that exists, after a device and a kernel of its own: all must be dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.plugin import DeviceBase, hookimpl, register_kernel


class TwiceDevice(DeviceBase):
    """A device of a kind that must not appear."""

    kind = "twice"

    def probe(self) -> int:
        return 1


@register_kernel("relu", "twice")
def relu(call: Any, context: Any) -> Any:
    """Never runs."""
    raise AssertionError


@register_kernel("argsort", "array")
def argsort(call: Any, context: Any) -> Any:
    """Clashes with the framework's own."""
    raise AssertionError


@hookimpl
def register_devices(register: Callable[[Any], None]) -> None:
    """Register the device."""
    register(TwiceDevice())


@hookimpl
def register_kernels(register: Callable[[Any], None]) -> None:
    """Register both kernels."""
    register(relu)
    register(argsort)
