"""Benches: a built-in device with an allocator and contexts, without the framework above it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_on_host import host_cupy

import fluidlite as fluid
from fluidlite import plugin_loader
from fluidlite.devices.cpu import CPUDevice
from fluidlite.devices.cuda import CUDADevice
from fluidlite.devices.opencl import OpenCLDevice
from fluidlite.plugin import DeviceUnavailable, Span

PLUGINS = str(Path(__file__).parent.parent / "plugins")


@pytest.fixture(scope="module")
def load_plugin() -> Iterator[Callable[[str, str], None]]:
    """``load_plugin(name, module)`` loads a test-only plugin till the module ends."""
    loaded = []

    def load(name: str, module: str) -> None:
        fluid.places()
        sys.path.insert(0, PLUGINS)
        try:
            record = plugin_loader.load(name, module)
        finally:
            sys.path.remove(PLUGINS)
        assert record.state == "loaded", record.traceback
        loaded.append(name)

    yield load
    for name in loaded:
        plugin_loader.unload(name)


@pytest.fixture(params=("cpu", pytest.param("opencl", marks=pytest.mark.opencl), "fpga", "strict"))
def kind(request: pytest.FixtureRequest, load_plugin: Callable[[str, str], None], require: Callable[..., None]) -> str:
    """Every kind of place that there is, one after the other; "strict" has an array namespace alone."""
    if request.param == "strict":
        pytest.importorskip("array_api_strict")
        if fluid.Place("strict") not in fluid.places():
            load_plugin("strict", "strict_device")
    require(request.param)
    return str(request.param)


@pytest.fixture
def no_fallback() -> None:
    """Operators without a kernel raise."""
    fluid.set_fallback("error")


class Bench:
    """Device 0 of a kind with an allocator and a context, which stays open till the test ends."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.info = device.info(0)
        self.allocator = device.allocator(0)
        self.contexts: list[Any] = []
        self.context = self.new_context()
        self.array = device.array(0)
        self.language = device.language(0)

    def new_context(self) -> Any:
        self.contexts.append(self.device.context(0, len(self.contexts) % self.info.queues))
        return self.contexts[-1]

    def span(self, data: np.ndarray[Any, Any] | int) -> Span:
        """A new allocation, filled with data if it is an array."""
        nbytes = data if isinstance(data, int) else data.nbytes
        room = -(-nbytes // self.info.alignment) * self.info.alignment
        span = Span(self.allocator.allocate(room), 0, nbytes)
        if not isinstance(data, int):
            self.context.copy_in(span, data.data.cast("B"))
        return span

    def read(self, span: Span, dtype: str = "uint8", context: Any = None) -> np.ndarray[Any, Any]:
        context = context or self.context
        host = np.zeros(span.nbytes, np.uint8)
        context.copy_out(host.data, span)
        context.wait()
        return host.view(dtype)


@pytest.fixture(scope="module")
def probed() -> dict[str, Any]:
    """Devices by kind; an unavailable kind maps to its reason."""
    found: dict[str, Any] = {}
    for device in (CPUDevice(), OpenCLDevice(), CUDADevice()):
        try:
            found[device.kind] = device if device.probe() else "no device"
        except DeviceUnavailable as exc:
            found[device.kind] = str(exc)
    return found


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The CUDA plugin over host memory: everything but arrays and kernels runs."""
    fake = host_cupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    device = CUDADevice()
    assert device.probe() == 2
    bench = Bench(device)
    bench.array = bench.language = None
    return bench


KINDS = (
    "cpu",
    pytest.param("opencl", marks=pytest.mark.opencl),
    pytest.param("cuda", marks=pytest.mark.cuda),
    "fake cuda",
)


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, probed: dict[str, Any]) -> Any:
    """Each built-in device in turn; a missing one skips with its reason."""
    if request.param == "fake cuda":
        bench = request.getfixturevalue("fake_cuda")
    elif isinstance(probed[request.param], str):
        pytest.skip(probed[request.param])
    else:
        bench = Bench(probed[request.param])
    yield bench
    for context in bench.contexts:
        context.close()


@pytest.fixture
def with_array(bench: Bench) -> Bench:
    if bench.array is None:
        pytest.skip(f"{bench.device.kind} has no array namespace")
    return bench


@pytest.fixture
def with_language(bench: Bench) -> Bench:
    if bench.language is None:
        pytest.skip(f"{bench.device.kind} has no kernel language")
    return bench
