"""A test-only plugin: host bytes as a device whose arrays are array-api-strict's.

Whatever runs here uses nothing but the Array-API standard. It is not eager, so indices out of range are
recorded in the status word, and it has a host of its own: every copy to or from it is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_strict
import numpy as np

from fluidlite.plugin import (
    AllocatorBase,
    ArrayBase,
    ContextBase,
    DeviceBase,
    DeviceInfo,
    Span,
    hookimpl,
    numpy_dtype,
)

ALIGNMENT = 64
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
"""The standard has no half types."""


class StrictAllocator(AllocatorBase):
    """A handle is an aligned array of bytes; it is filled with rubbish, which a kernel must not take for values."""

    def allocate(self, nbytes: int) -> Any:
        raw = np.full(nbytes + ALIGNMENT, 0xA5, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + nbytes]

    def release(self, handle: Any) -> None:
        handle[:] = 0x5A  # who reads it now reads rubbish


class StrictContext(ContextBase):
    """Immediate copies."""

    def copy_in(self, dst: Span, src: memoryview) -> None:
        dst.handle[dst.offset : dst.offset + dst.nbytes] = np.frombuffer(src, np.uint8)

    def copy_out(self, dst: memoryview, src: Span) -> None:
        np.frombuffer(dst, np.uint8)[:] = src.handle[src.offset : src.offset + src.nbytes]

    def wait(self) -> None:
        return None

    def activate(self) -> Any:
        return np.errstate(all="ignore")


class StrictArrays(ArrayBase):
    """The namespace; no ``out=``, no extras, not eager."""

    xp = array_api_strict

    def wrap(self, span: Span, dims: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None) -> Any:
        kind = numpy_dtype(dtype)
        steps = None if strides is None else tuple(step * kind.itemsize for step in strides)
        array = np.ndarray(dims, kind, span.handle, span.offset, steps)
        return array_api_strict.asarray(array, copy=False)


class StrictDevice(DeviceBase):
    """One device."""

    kind = "strict"

    def probe(self) -> int:
        return 1

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name="array-api-strict", alignment=ALIGNMENT, dtypes=DTYPES)

    def allocator(self, index: int) -> StrictAllocator:
        return StrictAllocator()

    def context(self, index: int, queue: int) -> StrictContext:
        return StrictContext(self.place(index))

    def array(self, index: int) -> StrictArrays:
        return StrictArrays()


@hookimpl
def register_devices(register: Callable[[Any], None]) -> None:
    """Hand it over."""
    register(StrictDevice())
