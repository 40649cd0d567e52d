"""A test-only device whose memory is small, and whose queue goes on only when the test says so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fluidlite import plugin_loader
from fluidlite.plugin import AllocatorBase, ContextBase, DeviceBase, DeviceInfo, Span, hookimpl

_numbers = itertools.count()


class FakeEvent:
    """Done once the test lets its device go on, or somebody waits for it."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.passed = not device.held

    def done(self) -> bool:
        return self.passed

    def wait(self) -> None:
        self.passed = True


class FakeAllocator(AllocatorBase):
    """Counts, and refuses what is beyond the device's memory. A handle is an index of ``device.live``."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def allocate(self, nbytes: int) -> int:
        device = self.device
        assert nbytes > 0
        assert nbytes % device.alignment == 0
        with device.lock:
            if sum(block.nbytes for block in device.live.values()) + nbytes > device.memory:
                raise MemoryError("the board is full")
            handle = next(device.handles)
            device.live[handle] = np.full(nbytes, 0xA5, np.uint8)
            device.allocated += 1
        return handle

    def release(self, handle: int) -> None:
        with self.device.lock:
            del self.device.live[handle]  # a KeyError is a double release
            self.device.released += 1


class FakeContext(ContextBase):
    """Copies are immediate; events are the test's."""

    def __init__(self, place: Any, device: FakeDevice, queue: int) -> None:
        super().__init__(place)
        self.device = device
        self.queue = queue
        self.waits = 0
        self.waited_for: list[Any] = []
        self.closes = 0

    def copy_in(self, dst: Span, src: memoryview) -> None:
        self.device.live[dst.handle][dst.offset : dst.offset + dst.nbytes] = np.frombuffer(src, np.uint8)

    def copy_out(self, dst: memoryview, src: Span) -> None:
        np.frombuffer(dst, np.uint8)[:] = self.device.live[src.handle][src.offset : src.offset + src.nbytes]

    def record(self) -> FakeEvent:
        event = FakeEvent(self.device)
        self.device.events.append(event)
        return event

    def wait_for(self, event: Any) -> None:
        self.waited_for.append(event)

    def wait(self) -> None:
        self.waits += 1
        if self.device.failure is not None:
            raise self.device.failure

    def close(self) -> None:
        self.closes += 1


class FakeDevice(DeviceBase):
    """One device of a kind of its own.

    ``held`` says that events are not done before ``go_on``; ``failure`` is raised by ``wait``.
    """

    def __init__(self, memory: int = 1 << 20, alignment: int = 64, queues: int = 2) -> None:
        self.kind = f"fake{next(_numbers)}"
        self.memory = memory
        self.alignment = alignment
        self.queues = queues
        self.lock = threading.Lock()
        self.live: dict[int, np.ndarray[Any, Any]] = {}
        self.handles = itertools.count(1)
        self.allocated = 0
        self.released = 0
        self.held = False
        self.events: list[FakeEvent] = []
        self.failure: Exception | None = None
        self.made: list[FakeContext] = []

    def go_on(self) -> None:
        """Let everything that is queued happen."""
        self.held = False
        for event in self.events:
            event.passed = True

    def probe(self) -> int:
        return 1

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name=self.kind, memory=self.memory, alignment=self.alignment, queues=self.queues)

    def allocator(self, index: int) -> FakeAllocator:
        return FakeAllocator(self)

    def context(self, index: int, queue: int) -> FakeContext:
        self.made.append(FakeContext(self.place(index), self, queue))
        return self.made[-1]


class _Plugin:
    def __init__(self, device: Any) -> None:
        self.device = device

    @hookimpl
    def register_devices(self, register: Any) -> None:
        register(self.device)


@contextmanager
def installed(device: Any) -> Iterator[Any]:
    """Load a plugin that brings the device, and unload it afterwards."""
    record = plugin_loader.load(f"plugin of {device.kind}", _Plugin(device))
    assert record.state == "loaded", record.traceback
    try:
        yield device
    finally:
        plugin_loader.unload(f"plugin of {device.kind}")
