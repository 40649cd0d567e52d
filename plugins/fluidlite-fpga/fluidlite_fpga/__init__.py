"""A simulated accelerator for fluidlite: a separate process with its own memory and command queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.plugin import Library, hookimpl

from fluidlite_fpga.device import FpgaDevice

__all__ = ["FpgaDevice", "clear_command_log", "command_log"]

_device = FpgaDevice()


@hookimpl
def register_devices(register: Callable[[Any], None]) -> None:
    """Register the device."""
    register(_device)


@hookimpl
def register_libraries(register: Callable[[Any], None]) -> None:
    """Register the library of the kernels."""
    register(Library(name="fpgann", places=("fpga",), rank=10))


@hookimpl
def register_kernels(register: Callable[[Any], None]) -> None:
    """Register the kernels."""
    from fluidlite_fpga import elementwise, kernels

    register(kernels)
    register(elementwise)
    for kernel in (*kernels.GENERATED_KERNELS, *elementwise.GENERATED_KERNELS):
        register(kernel)


def command_log(index: int = 0) -> list[dict[str, Any]]:
    """Return the commands that board ``index`` has executed, oldest first.

    Each command is a dict of ``command`` (a kernel's name, ``"copy_in"``, ``"allocate"``, ...), ``dtype``, ``dims`` (of
    each operand of a kernel) and ``nbytes``; copies and kernels also have ``queue``, ``start`` and ``end`` in cycles of
    the board's clock, kernels their ``program``. Empty before the first use of the board.
    """
    return _device.command_log(index)


def clear_command_log(index: int = 0) -> None:
    """Clear the command log of board ``index``."""
    _device.clear_command_log(index)
