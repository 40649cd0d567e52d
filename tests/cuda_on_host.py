"""CUDA without a GPU: CuPy's memory, streams and events over host memory, and CUDA's kernel language for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite.devices.cuda.language import CompiledKernel, CUDALanguage
from fluidlite.plugin import KernelLanguageBase


def host_cupy() -> Any:
    """A CuPy of host memory, with streams of its own."""
    spec = importlib.util.spec_from_file_location("fake_cupy", Path(__file__).parent / "places" / "fake_cupy.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@contextmanager
def loaded(name: str, plugin: object) -> Iterator[None]:
    """Have a plugin."""
    record = fluid.plugin_loader.load(name, plugin)
    assert record.state == "loaded", record.traceback
    try:
        yield
    finally:
        fluid.plugin_loader.unload(name)


class HostLanguage(CUDALanguage):
    """CUDA's way to launch, with kernels for the host."""

    keywords = KernelLanguageBase.keywords
    group = None  # a loop goes through items one after the other

    def __init__(self) -> None:
        super().__init__()
        from fluidlite.devices.cpu.language import LLVMLanguage

        self._inner = LLVMLanguage()
        self.types, self.math = self._inner.types, self._inner.math

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> CompiledKernel:
        made = self._inner.compile(context, source, entry, parameters)
        types = tuple(None if name == "buffer" else np.dtype(name).type for name in parameters)

        def function(grid: Any, block: Any, args: list[Any], stream: Any) -> None:
            given = [SimpleNamespace(address=arg.ptr) if kind is None else arg for arg, kind in zip(args, types)]  # noqa: B905
            packed = made.packed(given)
            stream.do(lambda: made.call(0, 1, packed))

        return CompiledKernel(function, types)
