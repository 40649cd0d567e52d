"""Enough of CuPy's memory, streams and events over host memory to run the CUDA plugin without a GPU.

It checks what CUDA would: a stream is used with its own device current, and sizes and kinds are right.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np

MEMORY = 1 << 32
_current = [0]


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    pass


class Device:
    compute_capability = "80"
    cublas_handle = 7

    def __init__(self, index: int) -> None:
        self.index = index

    def __enter__(self) -> Self:
        _current.append(self.index)
        return self

    def __exit__(self, *_: object) -> None:
        assert _current.pop() == self.index


class Graph:
    """Launches that a stream captured."""

    started = 0

    def __init__(self, work: list[Callable[[], None]]) -> None:
        self.work = work

    def launch(self, stream: Stream) -> None:
        assert stream.device == _current[-1]
        assert stream.captured is None
        Graph.started += 1
        for each in self.work:
            each()


class Stream:
    made = 0
    is_static: ClassVar[list[Stream]] = []
    refusal: Exception | None = None
    """Raised where a capture ends."""

    def __init__(self, non_blocking: bool) -> None:
        assert non_blocking
        Stream.made += 1
        Stream.is_static.append(self)
        self.ptr = 1000 * _current[-1] + Stream.made
        self.device = _current[-1]
        self.failure = 0
        self.entered = False
        self.waits = 0
        self.captured: list[Callable[[], None]] | None = None

    def begin_capture(self) -> None:
        assert self.device == _current[-1]
        assert self.captured is None
        self.captured = []

    def end_capture(self) -> Graph:
        assert self.captured is not None
        graph, self.captured = Graph(self.captured), None
        if Stream.refusal is not None:
            raise Stream.refusal
        return graph

    def do(self, work: Callable[[], None]) -> None:
        """Run a kernel, or capture it."""
        assert self.device == _current[-1]
        if self.captured is not None:
            self.captured.append(work)
        else:
            work()

    def __enter__(self) -> Self:
        assert self.device == _current[-1]
        self.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.entered = False

    def synchronize(self) -> None:
        if self.captured is not None:
            raise CUDARuntimeError(900)  # not permitted while the stream is captured
        if self.failure:
            raise CUDARuntimeError(self.failure)

    def wait_event(self, event: Event) -> None:
        assert event.done
        self.waits += 1


class Event:
    done = False

    def __init__(self, disable_timing: bool) -> None:
        self.device = _current[-1]

    def record(self, stream: Stream) -> None:
        assert stream.device == self.device
        self.done = True

    def synchronize(self) -> None:
        assert self.done


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: Any, device_id: int) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


class MemoryPool:
    def malloc(self, nbytes: int) -> MemoryPointer:
        if nbytes >= 1 << 64:
            raise OverflowError("Python int too large to convert to C size_t")
        if nbytes > MEMORY:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes")
        raw = np.empty(nbytes + 512, np.uint8)
        start = raw.ctypes.data
        return MemoryPointer(UnownedMemory(start + -start % 512, nbytes, raw, _current[-1]), 0)

    def free_all_blocks(self) -> None:
        pass

    def total_bytes(self) -> int:
        return 0


def _memcpy_async(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    assert not any(known.captured is not None for known in Stream.is_static)  # it would be captured with its addresses
    assert kind in (1, 2, 3)
    assert stream
    assert size
    ctypes.memmove(dst, src, size)


def _memcpy_peer_async(dst: int, dst_device: int, src: int, src_device: int, size: int, stream: int) -> None:
    assert stream
    assert src_device == _current[-1]
    ctypes.memmove(dst, src, size)


runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    memcpyHostToDevice=1,
    memcpyDeviceToHost=2,
    memcpyDeviceToDevice=3,
    memoryTypeHost=1,
    memcpyAsync=_memcpy_async,
    memcpyPeerAsync=_memcpy_peer_async,
    pointerGetAttributes=lambda address: SimpleNamespace(type=0),
    getDeviceCount=lambda: 2,
    deviceGetPCIBusId=lambda index: f"0000:0{index}:00.0",
    getDeviceProperties=lambda index: {"name": b"Fake GPU", "totalGlobalMem": MEMORY},
)
cuda = SimpleNamespace(
    Device=Device,
    Stream=Stream,
    Event=Event,
    UnownedMemory=UnownedMemory,
    MemoryPointer=MemoryPointer,
    MemoryPool=MemoryPool,
    alloc_pinned_memory=bytearray,
    memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    runtime=runtime,
)
