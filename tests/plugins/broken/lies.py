"""Two devices that are not what they say: one brings back less than was asked for, one counts three where one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.plugin import AllocatorBase, ContextBase, DeviceBase, DeviceInfo, Span, hookimpl


class Bytes(AllocatorBase):
    """Host bytes."""

    def allocate(self, nbytes: int) -> Any:
        return bytearray(nbytes)

    def release(self, handle: Any) -> None:
        return None


class Copies(ContextBase):
    """Immediate copies, of which ``missing`` bytes do not come back."""

    missing = 0

    def copy_in(self, dst: Span, src: memoryview) -> None:
        dst.handle[dst.offset : dst.offset + dst.nbytes] = src

    def copy_out(self, dst: memoryview, src: Span) -> None:
        end = src.nbytes - self.missing
        dst[:end] = src.handle[src.offset : src.offset + end]

    def wait(self) -> None:
        return None


class ShortCopies(Copies):
    """The last byte stays on the device."""

    missing = 1


class ShortDevice(DeviceBase):
    """Its copy_out is short."""

    kind = "short"

    def probe(self) -> int:
        return 1

    def allocator(self, index: int) -> Bytes:
        return Bytes()

    def context(self, index: int, queue: int) -> Copies:
        return ShortCopies(self.place(index))


class ThreeDevice(DeviceBase):
    """It says three; there is one."""

    kind = "three"

    def probe(self) -> int:
        return 3

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name=["the only one"][index])

    def allocator(self, index: int) -> Bytes:
        return Bytes()

    def context(self, index: int, queue: int) -> Copies:
        return Copies(self.place(index))


@hookimpl
def register_devices(register: Callable[[Any], None]) -> None:
    """Register both."""
    register(ShortDevice())
    register(ThreeDevice())
