"""Raw memory of a device: byte ranges, and the allocator that a plugin gives."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Span(NamedTuple):
    """A byte range of one raw handle: what copies and kernels of a device see of memory."""

    handle: Any
    offset: int
    nbytes: int


WORKSPACE_ALIGNMENT = 256
"""Parts of a kernel's workspace begin at multiples of so many bytes; no device here aligns allocations to more."""


def aligned(nbytes: int, alignment: int = WORKSPACE_ALIGNMENT) -> int:
    """Return ``nbytes`` rounded up to a multiple of an alignment."""
    return -(-nbytes // alignment) * alignment


class Allocator(Protocol):
    """Raw memory of one device. The framework pools, counts, retries and orders."""

    def allocate(self, nbytes: int) -> Any:
        """Return a raw handle of ``nbytes`` (> 0, a multiple of ``info.alignment``) or raise MemoryError."""
        ...

    def release(self, handle: Any) -> None:
        """Give a handle back; called once, after the device's last use of it."""
        ...


class AllocatorBase:
    """Defaults of an allocator.

    Attributes
    ----------
    pooled : bool
        True if the library pools by itself; then the framework makes one allocator
        a context (so that reuse follows the queue's order) and keeps no pool of its own.
    """

    pooled = False

    def address(self, handle: Any) -> int | None:
        """Return the handle's address as a number for C calls, or None if it has none."""
        return None

    def trim(self) -> None:
        """Give cached memory back to the device (called when it is out of memory)."""
