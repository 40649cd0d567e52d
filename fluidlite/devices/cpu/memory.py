"""Host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.plugin import AllocatorBase

ALIGNMENT = 64  # a cache line, and the widest vector


class Bytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """Raw memory with its address as an attribute: NumPy takes a microsecond to compute it."""

    address: int


def as_handle(array: np.ndarray[Any, Any]) -> Bytes:
    """Return a flat array of bytes as a handle."""
    handle = array.view(Bytes)
    handle.address = array.ctypes.data
    return handle


class CPUAllocator(AllocatorBase):
    """Raw host memory: a handle is a flat ``uint8`` array that starts at a multiple of 64 bytes."""

    def allocate(self, nbytes: int) -> Any:
        try:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (ValueError, OverflowError) as exc:  # beyond the address range
            raise MemoryError(str(exc)) from exc
        start = -raw.ctypes.data % ALIGNMENT
        return as_handle(raw[start : start + nbytes])

    def release(self, handle: Any) -> None:
        """Do nothing: NumPy frees the memory with the last array that views it."""

    def address(self, handle: Any) -> int | None:
        return address_of(handle)


def address_of(handle: Any) -> int:
    """Return the address of a handle; arrays of the user are handles too."""
    try:
        address: int = handle.address
    except AttributeError:
        address = handle.ctypes.data
    return address
