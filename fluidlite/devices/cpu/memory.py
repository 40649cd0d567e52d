"""Host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.plugin import AllocatorBase

ALIGNMENT = 64  # a cache line, and the widest vector


class Bytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """Raw memory that knows its address: NumPy needs a microsecond to tell it."""

    address: int


def held(array: np.ndarray[Any, Any]) -> Bytes:
    """Return a flat array of bytes as a handle."""
    handle = array.view(Bytes)
    handle.address = array.ctypes.data
    return handle


class CPUAllocator(AllocatorBase):
    """Raw host memory: a handle is a flat ``uint8`` array that starts at a multiple of 64 bytes."""

    def allocate(self, nbytes: int) -> Any:
        try:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (ValueError, OverflowError) as exc:  # more than an address can count
            raise MemoryError(str(exc)) from exc
        start = -raw.ctypes.data % ALIGNMENT
        return held(raw[start : start + nbytes])

    def release(self, handle: Any) -> None:
        """Nothing to do: the memory goes with the last array that views it."""

    def address(self, handle: Any) -> int | None:
        return address_of(handle)


def address_of(handle: Any) -> int:
    """Return where a handle begins; arrays of the user's are handles too."""
    try:
        address: int = handle.address
    except AttributeError:
        address = handle.ctypes.data
    return address
