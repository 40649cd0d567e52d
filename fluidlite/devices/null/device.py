"""The NULL device: memory without bytes, and a kernel language whose kernels do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.plugin import AllocatorBase, ContextBase, DeviceBase, DeviceInfo, KernelLanguageBase, Span


class NullAllocator(AllocatorBase):
    """Allocates sizes without bytes: the framework counts them, and releases each once."""

    def allocate(self, nbytes: int) -> Any:
        """Return a handle without memory."""
        return [nbytes]

    def release(self, handle: Any) -> None:
        """Do nothing."""


class NullContext(ContextBase):
    """A queue that is always idle."""

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Copy nothing."""

    def copy_out(self, dst: memoryview, src: Span) -> None:
        """Write zeros."""
        dst[:] = bytes(len(dst))

    def copy_within(self, dst: Span, src: Span) -> None:
        """Copy nothing."""

    def wait(self) -> None:
        """Return at once."""


class NullLanguage(KernelLanguageBase):
    """Plain C that is emitted and not compiled."""

    name = "null"

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> Any:
        """Return the entry's name as the kernel."""
        return entry

    def launch(self, context: Any, kernel: Any, items: int, args: Sequence[Any], group: int | None = None) -> None:
        """Do nothing: the context counts it."""


class NullDevice(DeviceBase):
    kind = "null"
    place_name = "NullPlace"

    def __init__(self) -> None:
        self._language = NullLanguage()

    def probe(self) -> int:
        """Return 1: the device is always available."""
        return 1

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name="schedules and counts, computes nothing", computes=False, fork_safe=True)

    def allocator(self, index: int) -> NullAllocator:
        return NullAllocator()

    def context(self, index: int, queue: int) -> NullContext:
        return NullContext(self.place(index))

    def language(self, index: int) -> NullLanguage:
        return self._language
