"""Raw memory of a device: byte ranges, and the allocator class that plugins implement."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Span(NamedTuple):
    """A byte range of one raw handle: the memory argument of a device's copies and kernels."""

    handle: Any
    offset: int
    nbytes: int


WORKSPACE_ALIGNMENT = 256
"""Alignment in bytes of the parts of a kernel's workspace; no built-in device aligns allocations to more."""


def aligned(nbytes: int, alignment: int = WORKSPACE_ALIGNMENT) -> int:
    """Return ``nbytes`` rounded up to a multiple of an alignment."""
    return -(-nbytes // alignment) * alignment


class Allocator(Protocol):
    """Raw memory of one device. The framework adds the pool, statistics, retries and the order of reuse."""

    def allocate(self, nbytes: int) -> Any:
        """Return a raw handle of ``nbytes`` (> 0, a multiple of ``info.alignment``) or raise MemoryError."""
        ...

    def release(self, handle: Any) -> None:
        """Release a handle; called once, after the device's last use of it."""
        ...


class AllocatorBase:
    """Defaults of an allocator.

    Attributes
    ----------
    pooled : bool
        True if the library has its own pool; the framework then creates one allocator
        for each context (so that reuse follows the queue's order) and no pool.
    """

    pooled = False

    def address(self, handle: Any) -> int | None:
        """Return the handle's address as a number for C calls, or None if it has none."""
        return None

    def trim(self) -> None:
        """Return cached memory to the device (called when it is out of memory)."""
