"""CUDA's kernel language for the CuPy of host memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from fluidlite.devices.cuda.language import CUDALanguage, Kernel
from fluidlite.plugin import KernelLanguageBase


class HostLanguage(CUDALanguage):
    """CUDA's way to launch, with kernels for the host."""

    keywords = KernelLanguageBase.keywords
    group = None  # a loop goes through items one after the other

    def __init__(self) -> None:
        super().__init__()
        from fluidlite.devices.cpu.language import LLVMLanguage

        self._inner = LLVMLanguage()
        self.types, self.math = self._inner.types, self._inner.math

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> Kernel:
        made = self._inner.compile(context, source, entry, parameters)
        types = tuple(None if name == "buffer" else np.dtype(name).type for name in parameters)

        def function(grid: Any, block: Any, args: list[Any], stream: Any) -> None:
            given = [SimpleNamespace(address=arg.ptr) if kind is None else arg for arg, kind in zip(args, types)]  # noqa: B905
            packed = made.packed(given)
            stream.do(lambda: made.call(0, 1, packed))

        return Kernel(function, types)
