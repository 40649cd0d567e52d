"""The CPU's dialect alone: a device of host memory without arrays, so that every kernel is compiled by LLVM."""

from __future__ import annotations

import dataclasses
from typing import Any

from fluidlite.platform.cpu import CPUDevice
from fluidlite.plugin import DeviceInfo, hookimpl


class LLVMDevice(CPUDevice):
    """Like the CPU; its kernels are written or generated in dialect words."""

    kind = "llvm"

    def info(self, index: int) -> DeviceInfo:
        return dataclasses.replace(super().info(index), host=False, dlpack=None)

    def array(self, index: int) -> Any:
        return None


@hookimpl
def register_devices(register: Any) -> None:
    register(LLVMDevice())
