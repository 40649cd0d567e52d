"""The built-in devices on their own: facts, memory, copies, events and arrays."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fluidlite.devices.cpu import CPUDevice
from fluidlite.devices.cuda import CUDADevice
from fluidlite.devices.cuda.array import CuPyArrays
from fluidlite.devices.opencl import OpenCLDevice
from fluidlite.plugin import DeviceLost, DeviceUnavailable, Place, Span


def noise(nbytes: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


# --- facts -----------------------------------------------------------------------------------------------------------


def test_info(bench: Any) -> None:
    info = bench.info
    assert info.name
    assert info.memory > 1 << 20
    assert info.alignment >= 64
    assert info.alignment & (info.alignment - 1) == 0
    assert {"bool", "int64", "float32"} <= set(info.dtypes)
    assert info.host == (bench.device.kind == "cpu")
    assert bench.context.place == Place(bench.device.kind, 0)


def test_every_queue_makes_a_context(bench: Any) -> None:
    for queue in range(bench.info.queues):
        context = bench.device.context(0, queue)
        context.wait()
        context.close()
        context.close()  # twice is allowed


@pytest.mark.parametrize("kind", [OpenCLDevice, CUDADevice])
def test_a_missing_driver_is_a_reason(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyopencl", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DeviceUnavailable, match=rf"pip install '?fluidlite\[{kind.kind}"):
        kind().probe()


def test_opencl_without_a_device_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = pytest.importorskip("pyopencl")

    def no_platforms() -> list[Any]:
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", no_platforms)
    with pytest.raises(DeviceUnavailable, match="apt-get install pocl-opencl-icd"):
        OpenCLDevice().probe()


def test_opencl_counts_devices_of_all_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = pytest.importorskip("pyopencl")

    def platform(name: str, *versions: str) -> Any:
        devices = [SimpleNamespace(version=version) for version in versions]
        return SimpleNamespace(name=name, version="OpenCL 3.0", get_devices=lambda: devices)

    platforms = [platform("b", "OpenCL 3.0 b"), platform("a", "OpenCL 1.2 a", "OpenCL 1.1 old", "OpenCL 2.0 a")]
    monkeypatch.setattr(cl, "get_platforms", lambda: platforms)
    device = OpenCLDevice()
    assert device.probe() == 3
    assert [each.version for each in device._devices] == ["OpenCL 1.2 a", "OpenCL 2.0 a", "OpenCL 3.0 b"]


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, 1000, 1 << 20])
def test_copies_that_do_not_wait(bench: Any, nbytes: int) -> None:
    data = noise(nbytes)
    span = bench.span(noise(nbytes))
    host = bench.context.pinned(nbytes)
    for source in (memoryview(bytearray(nbytes)), *([host] if host is not None else ())):
        assert source.nbytes >= nbytes
        assert not source.readonly
        np.frombuffer(source, np.uint8)[:nbytes] = data
        bench.context.copy_in_async(span, source[:nbytes])
        bench.context.record().wait()
        np.frombuffer(source, np.uint8)[:] = 0  # free after the event
        assert (bench.read(span) == data).all()
    assert (host is None) is bench.info.host


def test_allocations_are_aligned(bench: Any) -> None:
    for nbytes in (1, 3, 10):
        address = bench.allocator.address(bench.allocator.allocate(nbytes * bench.info.alignment))
        assert address is None or address % bench.info.alignment == 0


@pytest.mark.parametrize("power", [50, 62, 70])
def test_an_absurd_size_is_a_memory_error(bench: Any, power: int) -> None:
    with pytest.raises(MemoryError) as caught:
        bench.allocator.allocate(1 << power)
    assert str(caught.value)
    assert (bench.read(bench.span(noise(64))) == noise(64)).all()  # and life goes on


def test_opencl_names_its_limit(bench: Any) -> None:
    if bench.device.kind != "opencl":
        pytest.skip("a limit of OpenCL")
    with pytest.raises(MemoryError, match="CL_DEVICE_MAX_MEM_ALLOC_SIZE"):
        bench.allocator.allocate(bench.allocator._limit + 1)


def test_a_pool_of_the_library_trims(bench: Any) -> None:
    span = bench.span(noise(1 << 20))
    bench.context.wait()
    bench.allocator.release(span.handle)
    del span
    bench.allocator.trim()
    if bench.device.kind == "cuda":
        assert bench.allocator._pool.total_bytes() == 0  # the pool counts references: ours are gone


# --- copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, 3, 17, 4095, 32768, 32769, 1_000_003])
@pytest.mark.parametrize("offset", [0, 1, 129])
def test_copies_take_odd_sizes_and_offsets(bench: Any, nbytes: int, offset: int) -> None:
    before, data = noise(nbytes + 300, 1), noise(nbytes, 2)
    whole = bench.span(before)
    part = Span(whole.handle, offset, nbytes)
    bench.context.copy_in(part, data.data)
    assert (bench.read(part) == data).all()
    before[offset : offset + nbytes] = data
    assert (bench.read(whole) == before).all()


@pytest.mark.parametrize("nbytes", [4, 40_000, 3_000_000])
def test_the_source_of_copy_in_may_be_reused(bench: Any, nbytes: int) -> None:
    data = noise(nbytes)
    spans = []
    for step in range(5):
        host = data + np.uint8(step)
        spans.append(bench.span(host))
        host[:] = 0
    for step, span in enumerate(spans):
        assert (bench.read(span) == data + np.uint8(step)).all()


def test_copies_take_any_buffer_of_bytes(bench: Any) -> None:
    span = bench.span(16)
    bench.context.copy_in(span, memoryview(b"0123456789abcdef"))  # read-only
    host = bytearray(16)
    bench.context.copy_out(memoryview(host), span)
    bench.context.wait()
    assert host == b"0123456789abcdef"


def test_copy_within(bench: Any) -> None:
    data = noise(1000)
    one, other = bench.span(data), bench.span(np.zeros(1000, np.uint8))
    bench.context.copy_within(Span(other.handle, 5, 77), Span(one.handle, 13, 77))
    bench.context.copy_within(Span(other.handle, 500, 100), Span(other.handle, 0, 100))  # one handle
    expected = np.zeros(1000, np.uint8)
    expected[5:82] = data[13:90]
    expected[500:600] = expected[:100]
    assert (bench.read(other) == expected).all()


def test_empty_copies_do_nothing(bench: Any) -> None:
    span = Span(bench.span(64).handle, 3, 0)
    bench.context.copy_in(span, memoryview(b""))
    bench.context.copy_out(memoryview(bytearray()), span)
    bench.context.copy_within(span, span)
    bench.context.wait()


def test_copy_peer_between_two_queues(bench: Any) -> None:
    other, data = bench.new_context(), noise(100_000)
    source, target = bench.span(data), bench.span(100_000)
    if bench.context.copy_peer(target, other, source):
        assert (bench.read(target, context=other) == data).all()


def test_copy_peer_refuses_another_kind(bench: Any) -> None:
    foreign = CPUDevice()
    target = Span(foreign.allocator(0).allocate(64), 0, 64)
    assert bench.context.copy_peer(target, foreign.context(0, 0), bench.span(64)) is False


# --- events ----------------------------------------------------------------------------------------------------------


def test_many_copies_out_end_with_one_event(bench: Any) -> None:
    data = noise(256)
    span, hosts = bench.span(data), [np.zeros(256, np.uint8) for _ in range(200)]
    for host in hosts:
        bench.context.copy_out(host.data, span)
    event = bench.context.record()
    event.wait()
    assert event.done()
    assert all((host == data).all() for host in hosts)


def test_events_order_contexts(bench: Any) -> None:
    """The second queue is idle: without the event it would read before the first has come to the last copy."""
    one, other, data = bench.context, bench.new_context(), noise(16_000_000)
    source, scratch, target = bench.span(data), bench.span(data), bench.span(np.zeros(64, np.uint8))
    for _ in range(10):
        one.copy_within(scratch, source)
    one.copy_within(target, Span(source.handle, 0, 64))
    other.wait_for(one.record())
    assert (bench.read(target, context=other) == data[:64]).all()


def test_a_foreign_event_blocks_the_host(bench: Any) -> None:
    class Foreign:
        waited = False

        def done(self) -> bool:
            return self.waited

        def wait(self) -> None:
            self.waited = True

    event = Foreign()
    bench.context.wait_for(event)
    assert event.waited


def test_an_event_is_asked_from_another_thread(bench: Any) -> None:
    bench.span(noise(1 << 20))
    event, seen = bench.context.record(), []

    def look() -> None:
        event.wait()
        seen.append(event.done())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(200)
    assert seen == [True]


def test_opencl_tells_a_lost_device_from_failed_work(bench: Any) -> None:
    if bench.device.kind != "opencl":
        pytest.skip("written for OpenCL's error codes")
    board, cl = bench.context.board, bench.context.board.cl

    def fail(code: int) -> None:
        raise cl.RuntimeError(cl._cl._ErrorRecord(msg="it failed", code=code, routine="clFinish"))

    with pytest.raises(DeviceLost, match="no longer answers"):
        board.finish(lambda: fail(cl.status_code.DEVICE_NOT_AVAILABLE))
    with pytest.raises(cl.RuntimeError):
        board.finish(lambda: fail(cl.status_code.OUT_OF_RESOURCES))


# --- arrays ----------------------------------------------------------------------------------------------------------


def test_wrap_views_without_a_copy(with_array: Any) -> None:
    data = np.arange(24, dtype="float32")
    span, bench, xp = with_array.span(data), with_array, with_array.array.xp
    with bench.context.activate():
        view = bench.array.wrap(Span(span.handle, 16, 48), (3, 4), "float32", None)
        view += 1
        turned = bench.array.wrap(Span(span.handle, 16, 48), (4, 3), "float32", (1, 4))
        turned *= xp.arange(12, dtype="float32").reshape(4, 3)
    data[4:16] = (data[4:16] + 1) * np.arange(12).reshape(4, 3).T.reshape(-1)
    assert (bench.read(span, "float32") == data).all()


def test_wrap_knows_every_dtype(with_array: Any) -> None:
    span = with_array.span(np.zeros(64, np.uint8))
    for dtype in with_array.info.dtypes:
        with with_array.context.activate():
            array = with_array.array.wrap(span, (), dtype, None)
            array[...] = 1
        assert (array.dtype.name, array.shape) == (dtype, ())


def test_adopt_takes_new_memory_only(with_array: Any) -> None:
    bench, xp = with_array, with_array.array.xp
    data = np.arange(12, dtype="float32")
    span = bench.span(data)
    with bench.context.activate():
        ours = bench.array.wrap(span, (3, 4), "float32", None)
        fresh = ours + 1
        handle = bench.array.adopt(fresh)
        assert (bench.read(Span(handle, 0, 48), "float32") == data + 1).all()
        for refused in (ours, ours[1:], fresh[1:], fresh.T, xp.asfortranarray(fresh), 1.0, data[0]):
            assert bench.array.adopt(refused) is None


@pytest.mark.parametrize(("rows", "wide"), [(50, ()), (50, (3,)), (50, (2, 2)), (20, (300,))])
@pytest.mark.parametrize("strided", [False, True])
def test_scatter_add(with_array: Any, rows: int, wide: tuple[int, ...], strided: bool) -> None:
    scatter_add, xp = with_array.array.extra("scatter_add"), with_array.array.xp
    index = np.random.default_rng(3).integers(-7, 7, rows)
    values = np.random.default_rng(4).integers(0, 9, (rows, *wide)).astype("float32")
    expected = np.ones((7, *wide), "float32")
    for target, row in zip(index, values, strict=True):
        expected[target] += row
    with with_array.context.activate():
        out = xp.ones((14 if strided else 7, *wide), dtype="float32")[:: 2 if strided else 1]
        scatter_add(out, xp.asarray(index), xp.asarray(values))
        assert out.tolist() == expected.tolist()


def test_extras_are_a_closed_list(with_array: Any) -> None:
    assert with_array.array.extra("no_such_thing") is None
    for name in ("scatter_add", "take_along_axis", "put_along_axis", "from_dlpack"):
        assert callable(with_array.array.extra(name))


# --- CUDA without a GPU: logic over a fake CuPy, arrays with the real one --------------------------------------------


def test_cuda_copies_from_gpu_to_gpu(fake_cuda: Any) -> None:
    device, data = fake_cuda.device, noise(1000)
    other = device.context(1, 0)
    target = Span(device.allocator(1).allocate(1024), 0, 1000)
    assert fake_cuda.context.copy_peer(target, other, fake_cuda.span(data))
    assert (fake_cuda.read(target, context=other) == data).all()
    # before the copy ours waits for what the other still does with the target, and after it the other for us
    assert (fake_cuda.context.stream.waits, other.stream.waits) == (1, 1)


def test_cuda_activates_its_stream(fake_cuda: Any) -> None:
    with fake_cuda.context.activate():
        assert fake_cuda.context.stream.entered
    assert not fake_cuda.context.stream.entered


def test_cuda_waits_for_pinned_sources(fake_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    span, waits = fake_cuda.span(64), []
    monkeypatch.setattr(fake_cuda.context, "wait", lambda: waits.append(1))
    fake_cuda.context.copy_in(span, noise(64).data)
    assert not waits
    runtime = fake_cuda.context.cupy.cuda.runtime
    monkeypatch.setattr(runtime, "pointerGetAttributes", lambda address: SimpleNamespace(type=runtime.memoryTypeHost))
    fake_cuda.context.copy_in(span, noise(64).data)
    assert waits


def test_cuda_tells_a_lost_gpu_from_failed_work(fake_cuda: Any) -> None:
    context = fake_cuda.new_context()
    for status, error in ((700, DeviceLost), (2, context.cupy.cuda.runtime.CUDARuntimeError)):
        context.stream.failure = status
        with pytest.raises(error):
            context.wait()
    context.stream.failure = 0


def test_cupy_wraps_and_adopts() -> None:
    """CuPy makes array objects over any address without a GPU; only computing needs one."""
    cupy = pytest.importorskip("cupy")
    cuda, arrays, host = cupy.cuda, CuPyArrays(cupy), np.arange(24, dtype="float32")
    handle = cuda.MemoryPointer(cuda.UnownedMemory(host.ctypes.data, host.nbytes, host, 0), 0)
    view = arrays.wrap(Span(handle, 16, 48), (4, 3), "float32", (1, 4))
    assert (view.shape, view.strides, view.data.ptr) == ((4, 3), (4, 16), handle.ptr + 16)
    whole = arrays.wrap(Span(handle, 0, 96), (24,), "float32", None)
    assert arrays.adopt(whole) is None  # over our memory
    assert arrays.adopt(whole[1:]) is None
    assert arrays.adopt(1.0) is None
    for name in ("erf", "scatter_add", "take_along_axis", "put_along_axis", "from_dlpack"):
        assert callable(arrays.extra(name))
    assert arrays.extra("no_such_thing") is None
