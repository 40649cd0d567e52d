"""Every kernel in CUDA C, generated or written in dialect words, compiles with NVRTC. No GPU is needed.

A device of host bytes has CUDA's dialect: compiling is NVRTC's, launching packs the arguments and computes nothing.
All samples of all operators, and their gradients, are run on it; what they give is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.platform.cuda.dialect import CUDADialect, _scalar, nvrtc_compile
from fluidlite.platform.devices import devices
from fluidlite.plugin import AllocatorBase, CompileError, ContextBase, DeviceBase, DeviceInfo, Span
from fluidlite.testing import ConformanceError, checks

ARCHITECTURE = "compute_80"
FEWEST = 300
"""A floor: so many sources, at least, make up the operators."""
PLACE = fluid.Place("nvrtc")
CHECKS = [check for check in checks() if not check.id.startswith("device[")]


class Allocator(AllocatorBase):
    def allocate(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)

    def release(self, handle: Any) -> None:
        return None


class Context(ContextBase):
    def copy_in(self, dst: Span, src: memoryview) -> None:
        dst.handle[dst.offset : dst.offset + dst.nbytes] = np.frombuffer(src, np.uint8)

    def copy_out(self, dst: memoryview, src: Span) -> None:
        np.frombuffer(dst, np.uint8)[:] = src.handle[src.offset : src.offset + src.nbytes]

    def wait(self) -> None:
        return None


class Dialect(CUDADialect):
    """CUDA's, which compiles for a model that need not be there."""

    def __init__(self) -> None:
        self.sources: set[str] = set()
        self.launches = 0

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> Any:
        ptx = nvrtc_compile(source, ARCHITECTURE).decode()
        head = ptx.partition(f".visible .entry {entry}(")[2].partition(")")[0]
        if head.count(".param") != len(parameters):
            raise CompileError(f"{entry} has {head.count('.param')} parameters; expected {len(parameters)}", source)
        self.sources.add(source)
        return tuple(_scalar(name) for name in parameters)

    def launch(self, context: Any, kernel: Any, items: int, args: Sequence[Any], group: int | None = None) -> None:
        for kind, value in zip(kernel, args, strict=True):
            if kind is not None:
                kind(value)
        self.launches += 1


class Device(DeviceBase):
    kind = "nvrtc"

    def __init__(self) -> None:
        self._dialect = Dialect()

    def probe(self) -> int:
        return 1

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name="CUDA C without a GPU")

    def allocator(self, index: int) -> Allocator:
        return Allocator()

    def context(self, index: int, queue: int) -> Context:
        return Context(self.place(index))

    def dialect(self, index: int) -> Dialect:
        return self._dialect


@pytest.fixture(scope="module")
def dialect() -> Iterator[Dialect]:
    reason = "CUDA C is compiled by CuPy and nvidia-cuda-nvrtc (the extra cuda-check), which are not installed"
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason=reason)
    try:
        nvrtc.getVersion()
    except (RuntimeError, OSError, ImportError) as exc:  # CuPy is there without NVRTC's library
        pytest.skip(f"NVRTC cannot be loaded: {exc}")
    fluid.places()
    device = Device()
    devices.add(device, __file__)
    before = fluid.get_fallback()
    fluid.set_fallback("error")
    yield device._dialect
    fluid.set_fallback(before)
    devices.remove(device)


@pytest.mark.slow
def test_every_operator_compiles(dialect: Dialect) -> None:
    refused = {}
    for check in CHECKS:
        try:
            check(PLACE)
        except ConformanceError:
            pass  # nothing was computed
        except fluid.FluidError as exc:
            refused[check.id] = f"{type(exc).__name__}: {exc}"
    assert refused == {}
    assert len(dialect.sources) >= FEWEST
    assert dialect.launches >= len(CHECKS) / 2


def test_a_source_that_is_wrong_is_refused(dialect: Dialect) -> None:
    words = {**dialect.words, "real": dialect.types["float32"]}
    source = "{prologue}\n{kernel} f({buffer} {real} *x, int items) {{ {each} {{ x[gid] = 1; }} }}".format(**words)
    assert dialect.compile(None, source, "f", ("buffer", "int32")) == (None, np.int32)
    with pytest.raises(CompileError, match="2 parameters; expected 1"):
        dialect.compile(None, source, "f", ("buffer",))
    with pytest.raises(CompileError, match="no_such_name"):
        dialect.compile(None, source.replace("= 1", "= no_such_name"), "f", ("buffer", "int32"))
