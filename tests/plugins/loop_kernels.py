"""A test-only plugin: a device of host memory on which the nests of its loops compute every expression.

They do so on other devices, too, where these have a kernel language.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fluidlite.devices.cpu import CPUDevice
from fluidlite.plugin import DeviceInfo, hookimpl, register_kernel
from fluidlite.program.registry import ops
from fluidlite.render.loops.kernels import prepare, refusal


class LoopsDevice(CPUDevice):
    """Like the CPU; LLVM compiles all its kernels."""

    kind = "loops"

    def info(self, index: int) -> DeviceInfo:
        return dataclasses.replace(super().info(index), host=False, dlpack=None)

    def array(self, index: int) -> Any:
        return None


@hookimpl
def register_devices(register: Any) -> None:
    register(LoopsDevice())


@hookimpl
def register_kernels(register: Any) -> None:
    for op in ops:
        if op.expression is not None:
            register(register_kernel(op.type, "loops", "opencl", "nvrtc", library="loops", supports=refusal)(prepare))
