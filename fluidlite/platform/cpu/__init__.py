"""The CPU as a plugin like any other: NumPy memory, immediate copies, NumPy as array namespace."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from fluidlite.plugin import (
    ArrayBase,
    ContextBase,
    DeviceBase,
    DeviceInfo,
    DoneEvent,
    Event,
    Span,
    hookimpl,
    numpy_dtype,
)

from .memory import ALIGNMENT, CPUAllocator, held

FEW = 2048  # elements under which a branch an element costs less than four calls
WORDS: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
WIDE = 256  # elements of a row from which an addition a row beats an index an element


class CPUContext(ContextBase):
    """A queue that is always idle: every call has done its work when it returns."""

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Copy host bytes in."""
        dst.handle[dst.offset : dst.offset + dst.nbytes] = np.frombuffer(src, np.uint8)

    def copy_out(self, dst: memoryview, src: Span) -> None:
        """Copy host bytes out."""
        np.frombuffer(dst, np.uint8)[:] = src.handle[src.offset : src.offset + src.nbytes]

    def copy_within(self, dst: Span, src: Span) -> None:
        """Copy from span to span."""
        dst.handle[dst.offset : dst.offset + dst.nbytes] = src.handle[src.offset : src.offset + src.nbytes]

    def activate(self) -> AbstractContextManager[Any]:
        """Let NumPy be quiet about overflow and NaN, once around a run: they are values here, not mistakes."""
        return np.errstate(all="ignore")

    def record(self) -> Event:
        """Return an event that has happened."""
        return DoneEvent()

    def wait(self) -> None:
        """Return at once."""


def _scatter_add(out: Any, index: Any, values: Any) -> None:
    """Add ``values[i]`` to ``out[index[i]]`` along axis 0, in the order of ``i``, repeated indices included."""
    index = np.asarray(index).reshape(-1)
    rows = np.broadcast_to(values, (index.size, *out.shape[1:]))
    width = int(np.prod(out.shape[1:]))
    if out.ndim == 1 or not out.flags.c_contiguous:
        np.add.at(out, index, rows)
    elif width < WIDE:  # add.at is fast on flat arrays only: measured 3.5 times on rows of 64
        np.add.at(out.reshape(-1), (index[:, None] * width + np.arange(width)).reshape(-1), rows.reshape(-1))
    else:
        for position, target in enumerate(index.tolist()):
            out[target] += rows[position]


def _where(condition: Any, x: Any, y: Any, out: Any = None) -> Any:
    """Choose by a product with the condition's bit, without a branch an element: 19 us, not 211, on 64 K."""
    kind = np.result_type(x, y)
    if condition.dtype != bool or condition.size < FEW or kind.itemsize not in WORDS:
        chosen = np.where(condition, x, y)
        if out is None:
            return chosen
        np.copyto(out, chosen)
        return out
    word = WORDS[kind.itemsize]
    first, second = (np.asarray(value, kind).view(word) for value in (x, y))
    target = None if out is None else out.view(word)
    if second.ndim == 0 and second == 0:
        return np.multiply(first, condition, target, dtype=word).view(kind)
    if target is not None and not np.may_share_memory(target, second):  # a new array costs more than the three calls
        np.bitwise_xor(first, second, target)
        np.multiply(target, condition, target, dtype=word)
        return np.bitwise_xor(target, second, target).view(kind)
    differing = np.multiply(np.bitwise_xor(first, second), condition, dtype=word)
    return np.bitwise_xor(differing, second, target).view(kind)


class NumPyArrays(ArrayBase):
    """The array capability: NumPy over a handle's bytes.

    Its extras: ``scatter_add(out, index, values)`` (axis 0, repeated indices add up), ``take_along_axis``,
    ``put_along_axis``, ``from_dlpack``, and a ``where(condition, x, y, out=None)`` faster than NumPy's.
    NumPy has no ``erf``.
    """

    xp = np
    out = True
    eager = True
    _extras: Mapping[str, Any] = {
        "scatter_add": _scatter_add,
        "take_along_axis": np.take_along_axis,
        "put_along_axis": np.put_along_axis,
        "from_dlpack": np.from_dlpack,
        "where": _where,
    }

    def wrap(self, span: Span, dims: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None) -> Any:
        """View a span as an array; ``strides`` in elements, None for C order."""
        kind = numpy_dtype(dtype)
        steps = None if strides is None else tuple(step * kind.itemsize for step in strides)
        return np.ndarray(dims, kind, span.handle, span.offset, steps)

    def adopt(self, array: Any) -> Any:
        """Return an array's bytes as a handle, if it is C-contiguous and owns its memory; else None.

        A view is refused, for it may be one of a kernel's inputs: adopted, two tensors would share memory.
        """
        if not isinstance(array, np.ndarray):
            return None
        flags = array.flags
        return (
            held(array.reshape(-1).view(np.uint8)) if flags.owndata and flags.c_contiguous and flags.writeable else None
        )

    def extra(self, name: str) -> Any:
        """Return one of the extras above, or None."""
        return self._extras.get(name)


class CPUDevice(DeviceBase):
    """The host: always there, always one."""

    kind = "cpu"
    extras: Mapping[str, str] = {"llvm": "fluidlite[llvm]"}

    def __init__(self) -> None:
        self._arrays = NumPyArrays()

    def probe(self) -> int:
        """There is one CPU place, whatever the number of sockets."""
        return 1

    def info(self, index: int) -> DeviceInfo:
        """Name and memory as the system tells them."""
        return DeviceInfo(name=_processor_name(), memory=_physical_memory(), alignment=ALIGNMENT, host=True, dlpack=1)

    def allocator(self, index: int) -> CPUAllocator:
        """Make an allocator."""
        return CPUAllocator()

    def context(self, index: int, queue: int) -> CPUContext:
        """Make a context."""
        return CPUContext(self.place(index))

    def array(self, index: int) -> NumPyArrays:
        """NumPy."""
        return self._arrays

    def dialect(self, index: int) -> Any:
        """C, compiled by LLVM, where llvmlite and pycparser are installed."""
        try:
            from .dialect import LLVMDialect

            return LLVMDialect()
        except ImportError:
            return None


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine() or "CPU"


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


@hookimpl
def register_devices(register: Any) -> None:
    """Hand the CPU over."""
    register(CPUDevice())
