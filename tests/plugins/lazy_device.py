"""A test-only device whose queues do nothing before somebody waits: what is not ordered by events goes wrong."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.plugin import AllocatorBase, ContextBase, DeviceBase, DeviceInfo, Span

_numbers = itertools.count()


class LazyEvent:
    """A point in a queue."""

    def __init__(self, context: LazyContext, position: int) -> None:
        self.context = context
        self.position = position

    def done(self) -> bool:
        return self.context.done >= self.position

    def wait(self) -> None:
        self.context.run_to(self.position)


class LazyContext(ContextBase):
    """Commands wait in a list, and keep what they read and write."""

    def __init__(self, place: Any, device: LazyDevice) -> None:
        super().__init__(place)
        self.device = device
        self.commands: list[Callable[[], None]] = []
        self.done = 0

    def run_to(self, position: int) -> None:
        with self.device.lock:
            while self.done < position:
                command = self.commands[self.done]
                self.done += 1
                command()

    def _bytes(self, span: Span) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = span.handle[span.offset : span.offset + span.nbytes]
        return found

    def copy_in(self, dst: Span, src: memoryview) -> None:
        self.copy_in_async(dst, memoryview(bytes(src)))

    def copy_in_async(self, dst: Span, src: memoryview) -> None:
        target = self._bytes(dst)
        self.commands.append(lambda: np.copyto(target, np.frombuffer(src, np.uint8)))

    def copy_out(self, dst: memoryview, src: Span) -> None:
        source = self._bytes(src)
        self.commands.append(lambda: np.copyto(np.frombuffer(dst, np.uint8), source))

    def record(self) -> LazyEvent:
        return LazyEvent(self, len(self.commands))

    def wait_for(self, event: Any) -> None:
        self.commands.append(event.wait)

    def wait(self) -> None:
        self.run_to(len(self.commands))


class LazyAllocator(AllocatorBase):
    """A handle is an array, which says what was released."""

    def __init__(self, device: LazyDevice) -> None:
        self.device = device

    def allocate(self, nbytes: int) -> Any:
        self.device.live += nbytes
        return np.full(nbytes, 0xA5, np.uint8)

    def release(self, handle: Any) -> None:
        self.device.live -= handle.nbytes
        handle[:] = 0x5A


class LazyDevice(DeviceBase):
    """One device of a kind of its own; ``live`` counts the bytes that it has given."""

    def __init__(self) -> None:
        self.kind = f"lazy{next(_numbers)}"
        self.lock = threading.RLock()
        self.live = 0

    def probe(self) -> int:
        return 1

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name=self.kind, queues=2)

    def allocator(self, index: int) -> LazyAllocator:
        return LazyAllocator(self)

    def context(self, index: int, queue: int) -> LazyContext:
        return LazyContext(self.place(index), self)
