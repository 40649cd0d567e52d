"""CUDA's device, memory and streams, through CuPy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fluidlite.devices.cuda.array import CuPyArrays
from fluidlite.devices.cuda.language import CUDALanguage
from fluidlite.plugin import (
    AllocatorBase,
    ContextBase,
    DeviceBase,
    DeviceInfo,
    DeviceLost,
    DeviceUnavailable,
    Event,
    Place,
    Span,
)

QUEUES = 4
# Errors after which CUDA refuses every further call of this process: ECC, illegal address, launch timeout,
# assertion, and the hardware exceptions (stack, instruction, alignment, address space, program counter, launch).
LOST = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719})


class CUDAAllocator(AllocatorBase):
    """A CuPy memory pool of one GPU; a handle is a ``MemoryPointer``."""

    pooled = True

    def __init__(self, cupy: Any, index: int) -> None:
        self._cuda = cupy.cuda
        self._index = index
        self._pool = cupy.cuda.MemoryPool()

    def allocate(self, nbytes: int) -> Any:
        try:
            with self._cuda.Device(self._index):
                block = self._pool.malloc(nbytes)
        except (self._cuda.memory.OutOfMemoryError, OverflowError) as exc:  # OverflowError: beyond the address range
            raise MemoryError(str(exc)) from exc
        # As "unowned" memory, although it keeps the block alive, so that the array capability
        # can distinguish an array over this allocator's memory from one that CuPy allocated.
        return self._cuda.MemoryPointer(self._cuda.UnownedMemory(block.ptr, nbytes, block, self._index), 0)

    def release(self, handle: Any) -> None:
        """Nothing to do: CuPy counts references, and the block returns to its pool with the last array over it."""

    def address(self, handle: Any) -> int | None:
        address: int = handle.ptr
        return address

    def trim(self) -> None:
        with self._cuda.Device(self._index):
            self._pool.free_all_blocks()


class CUDAEvent:
    def __init__(self, event: Any, guard: Callable[[Callable[[], object]], None]) -> None:
        self.event = event
        self._guard = guard

    def done(self) -> bool:
        return bool(self.event.done)

    def wait(self) -> None:
        self._guard(self.event.synchronize)


class CUDAStamp(CUDAEvent):
    """A timed event in a stream."""

    def __init__(self, cupy: Any, event: Any, guard: Callable[[Callable[[], object]], None]) -> None:
        super().__init__(event, guard)
        self._cupy = cupy

    def seconds_since(self, earlier: Any) -> float:
        return 1e-3 * float(self._cupy.cuda.get_elapsed_time(earlier.event, self.event))


class CUDAContext(ContextBase):
    """One stream, which does not wait for the legacy default stream."""

    def __init__(self, place: Place, cupy: Any) -> None:
        super().__init__(place)
        self.cupy = cupy
        self._runtime = cupy.cuda.runtime
        with self._device():
            self.stream = cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make this GPU and stream current: CuPy's calls in the ``with`` block go there."""
        with self._device(), self.stream:
            yield

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Copy host bytes in. From pageable memory CUDA returns after staging them, so ``src`` may be reused."""
        if not dst.nbytes:
            return
        address = _address(src)
        self._transfer(dst.handle.ptr + dst.offset, address, dst.nbytes, self._runtime.memcpyHostToDevice)
        if self._runtime.pointerGetAttributes(address).type == self._runtime.memoryTypeHost:
            self.wait()  # pinned memory is read later, by the copy engine

    def copy_in_async(self, dst: Span, src: memoryview) -> None:
        """Copy host bytes in; the copy engine reads pinned memory when the stream gets there."""
        if dst.nbytes:
            self._transfer(dst.handle.ptr + dst.offset, _address(src), dst.nbytes, self._runtime.memcpyHostToDevice)

    def pinned(self, nbytes: int) -> memoryview:
        """Page-locked host memory from CuPy's pool."""
        with self._device():
            memory = self.cupy.cuda.alloc_pinned_memory(nbytes)
        return np.frombuffer(memory, np.uint8, nbytes).data

    def copy_out(self, dst: memoryview, src: Span) -> None:
        if src.nbytes:
            source = src.handle.ptr + src.offset
            self._transfer(_address(dst), source, src.nbytes, self._runtime.memcpyDeviceToHost)

    def copy_within(self, dst: Span, src: Span) -> None:
        if src.nbytes:
            target, source = dst.handle.ptr + dst.offset, src.handle.ptr + src.offset
            self._transfer(target, source, src.nbytes, self._runtime.memcpyDeviceToDevice)

    def copy_peer(self, dst: Span, dst_context: Any, src: Span) -> bool:
        """Copy to another GPU, or to another stream of this one; CUDA goes through the host if it must."""
        if not isinstance(dst_context, CUDAContext):
            return False
        if src.nbytes:
            self.wait_for(dst_context.record())
            target, source = dst.handle.ptr + dst.offset, src.handle.ptr + src.offset
            peer, own = dst_context.place.index, self.place.index
            with self._device():
                self._runtime.memcpyPeerAsync(target, peer, source, own, src.nbytes, self.stream.ptr)
            dst_context.wait_for(self.record())
        return True

    def record(self) -> Event:
        return CUDAEvent(self._recorded(disable_timing=True), self._guard)

    def stamp(self) -> CUDAStamp:
        """Record a timed event in the stream."""
        return CUDAStamp(self.cupy, self._recorded(), self._guard)

    def wait_for(self, event: Event) -> None:
        """Make later work wait for an event of any GPU; an event of another kind blocks the host."""
        if isinstance(event, CUDAEvent):
            self.stream.wait_event(event.event)
        else:
            event.wait()

    def wait(self) -> None:
        self._guard(self.stream.synchronize)

    def close(self) -> None:
        if self.stream is not None:
            self.wait()
            self.stream = None

    def _device(self) -> Any:
        return self.cupy.cuda.Device(self.place.index)

    def _recorded(self, **options: bool) -> Any:
        with self._device():
            event = self.cupy.cuda.Event(**options)
            event.record(self.stream)
        return event

    def _transfer(self, dst: int, src: int, nbytes: int, direction: int) -> None:
        with self._device():
            self._runtime.memcpyAsync(dst, src, nbytes, direction, self.stream.ptr)

    def _guard(self, wait: Callable[[], object]) -> None:
        """Call ``wait()``; raise DeviceLost if its error means that the GPU is lost."""
        try:
            wait()
        except self._runtime.CUDARuntimeError as exc:
            if exc.status in LOST:
                raise DeviceLost(f"{self.place} no longer answers: {exc}") from exc
            raise


class CUDADevice(DeviceBase):
    """All GPUs that CuPy sees."""

    kind = "cuda"
    place_name = "CUDAPlace"

    def __init__(self) -> None:
        self._cupy: Any = None
        self._arrays: CuPyArrays | None = None
        self._language = CUDALanguage()

    def probe(self) -> int:
        try:
            cupy: Any = importlib.import_module("cupy")
        except ImportError as exc:
            do = "pip install 'fluidlite[cuda12]', or cuda13"
            raise DeviceUnavailable(f"CuPy cannot be imported ({exc}); {do}") from exc
        try:
            count: int = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as exc:
            raise DeviceUnavailable(f"CuPy is here, but no usable NVIDIA driver: {exc}") from exc
        if count == 0:
            raise DeviceUnavailable("the NVIDIA driver shows no GPU (is CUDA_VISIBLE_DEVICES empty?)")
        self._cupy = cupy
        self._arrays = CuPyArrays(cupy)
        return count

    def info(self, index: int) -> DeviceInfo:
        facts = self._cupy.cuda.runtime.getDeviceProperties(index)
        return DeviceInfo(
            name=facts["name"].decode(),
            memory=facts["totalGlobalMem"],
            alignment=256,
            queues=QUEUES,
            dlpack=2,
            identity=self._cupy.cuda.runtime.deviceGetPCIBusId(index),
        )

    def allocator(self, index: int) -> CUDAAllocator:
        return CUDAAllocator(self._cupy, index)

    def context(self, index: int, queue: int) -> CUDAContext:
        """Make a stream; CUDA does not number its streams."""
        return CUDAContext(self.place(index), self._cupy)

    def array(self, index: int) -> CuPyArrays | None:
        return self._arrays

    def language(self, index: int) -> CUDALanguage:
        return self._language


def _address(view: memoryview) -> int:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address
