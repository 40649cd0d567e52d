"""The CPU's kernel language alone: a device of host memory without arrays, so that every kernel is compiled by LLVM."""

from __future__ import annotations

import dataclasses
from typing import Any

from fluidlite.devices.cpu import CPUDevice
from fluidlite.plugin import DeviceInfo, hookimpl


class LLVMDevice(CPUDevice):
    """Like the CPU; its kernels are written or generated in a kernel language."""

    kind = "llvm"

    def info(self, index: int) -> DeviceInfo:
        return dataclasses.replace(super().info(index), host=False, dlpack=None)

    def array(self, index: int) -> Any:
        return None


@hookimpl
def register_devices(register: Any) -> None:
    register(LLVMDevice())
