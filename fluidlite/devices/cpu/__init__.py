"""The CPU as a plugin: NumPy memory, immediate copies, NumPy as array namespace."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar, copy_context
from typing import Any

import numpy as np

from fluidlite.kernel_support import DoneEvent
from fluidlite.plugin import ArrayBase, ContextBase, DeviceBase, DeviceInfo, Event, Span, hookimpl, numpy_dtype

from .memory import ALIGNMENT, CPUAllocator, as_handle

UFUNC_BUFFER_ELEMENTS = 768  # size of NumPy's ufunc buffer in a run; see `_state_of_runs`
MIN_BRANCHLESS_ELEMENTS = 2048  # of a result: below it, one branch an element costs less than four calls
INTEGERS_BY_ITEMSIZE: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
MIN_ROW_ADD_ELEMENTS = 256  # of a row: from there on, adding row by row beats adding by element index


class CPUContext(ContextBase):
    """A queue that is always idle: every call completes its work before it returns."""

    def copy_in(self, dst: Span, src: memoryview) -> None:
        dst.handle[dst.offset : dst.offset + dst.nbytes] = np.frombuffer(src, np.uint8)

    def copy_out(self, dst: memoryview, src: Span) -> None:
        np.frombuffer(dst, np.uint8)[:] = src.handle[src.offset : src.offset + src.nbytes]

    def copy_within(self, dst: Span, src: Span) -> None:
        dst.handle[dst.offset : dst.offset + dst.nbytes] = src.handle[src.offset : src.offset + src.nbytes]

    def activate(self) -> AbstractContextManager[Any]:
        """Silence NumPy's warnings of overflow and NaN during a run, where they are valid values."""
        return _Quiet() if _STATE else np.errstate(all="ignore")

    def record(self) -> Event:
        """Return a completed event."""
        return DoneEvent()

    def wait(self) -> None:
        """Return at once."""


def _state_of_runs() -> tuple[ContextVar[Any], Any] | None:
    """Return NumPy's context variable and its value for runs (no warnings, a small buffer); None if it is not found.

    NumPy copies a broadcast operand into its buffer if the inner loop fits twice, which takes twice as long as the
    function itself; shorter inner loops gain nothing from larger copies. Setting a prepared value takes a third of the
    time of ``errstate`` and ``setbufsize``.
    """

    def inside() -> Context:
        with np.errstate(all="ignore"):
            np.setbufsize(UFUNC_BUFFER_ELEMENTS)
            return copy_context()

    before = copy_context()
    changed = [(k, v) for k, v in inside().items() if before.get(k) is not v]
    return changed[0] if len(changed) == 1 else None


_STATE = _state_of_runs()


class _Quiet:
    """Sets NumPy's state for a run, and restores the previous one."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _STATE[0].set(_STATE[1])  # type: ignore[index]  # only used where _STATE exists

    def __exit__(self, *error: object) -> None:
        _STATE[0].reset(self._token)  # type: ignore[index]


def _scatter_add(out: Any, index: Any, values: Any) -> None:
    """Add ``values[i]`` to ``out[index[i]]`` along axis 0, in the order of ``i``, repeated indices included."""
    index = np.asarray(index).reshape(-1)
    rows = np.broadcast_to(values, (index.size, *out.shape[1:]))
    width = int(np.prod(out.shape[1:]))
    if out.ndim == 1 or not out.flags.c_contiguous:
        np.add.at(out, index, rows)
    elif width < MIN_ROW_ADD_ELEMENTS:  # add.at is fast on flat arrays only: measured 3.5 times on rows of 64
        np.add.at(out.reshape(-1), (index[:, None] * width + np.arange(width)).reshape(-1), rows.reshape(-1))
    else:
        for position, target in enumerate(index.tolist()):
            out[target] += rows[position]


def _where(condition: Any, x: Any, y: Any, out: Any = None) -> Any:
    """Select by multiplying with the condition's bit, without a branch an element: 19 us instead of 211 for 64 K."""
    size = max(condition.size, getattr(x, "size", 1), getattr(y, "size", 1))
    small = size < MIN_BRANCHLESS_ELEMENTS or condition.dtype != bool
    kind = None if small else np.result_type(x, y)
    if kind is None or kind.itemsize not in INTEGERS_BY_ITEMSIZE:
        chosen = np.where(condition, x, y)
        if out is None:
            return chosen
        np.copyto(out, chosen)
        return out
    word = INTEGERS_BY_ITEMSIZE[kind.itemsize]
    first, second = (np.asarray(value, kind).view(word) for value in (x, y))
    target = None if out is None else out.view(word)
    if condition.size < size:  # a broadcast condition is converted once
        condition = condition.astype(word)
    if second.ndim == 0 and second == 0:
        selected = np.multiply(first, condition, target, dtype=word)
    elif target is not None and not any(np.may_share_memory(target, each) for each in (second, condition)):
        np.bitwise_xor(first, second, target)  # a new array costs more than the three calls
        np.multiply(target, condition, target, dtype=word)
        selected = np.bitwise_xor(target, second, target)
    else:
        differing = np.multiply(np.bitwise_xor(first, second), condition, dtype=word)
        selected = np.bitwise_xor(differing, second, target)
    return selected.view(kind) if out is None else out


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
            as_handle(array.reshape(-1).view(np.uint8))
            if flags.owndata and flags.c_contiguous and flags.writeable
            else None
        )

    def extra(self, name: str) -> Any:
        """Return one of the extras above, or None."""
        return self._extras.get(name)


class CPUDevice(DeviceBase):
    """The host: one device, always available."""

    kind = "cpu"
    place_name = "CPUPlace"
    extras: Mapping[str, str] = {"llvm": "llvmlite pycparser"}

    def __init__(self) -> None:
        self._arrays = NumPyArrays()

    def probe(self) -> int:
        """Return 1: one CPU place, whatever the number of sockets."""
        return 1

    def info(self, index: int) -> DeviceInfo:
        """Name and memory as the system reports them."""
        return DeviceInfo(
            name=_processor_name(), memory=_physical_memory(), alignment=ALIGNMENT, host=True, dlpack=1, fork_safe=True
        )

    def allocator(self, index: int) -> CPUAllocator:
        return CPUAllocator()

    def context(self, index: int, queue: int) -> CPUContext:
        return CPUContext(self.place(index))

    def array(self, index: int) -> NumPyArrays:
        return self._arrays

    def language(self, index: int) -> Any:
        """C, compiled by LLVM, where llvmlite and pycparser can be imported."""
        try:
            from .language import LLVMLanguage

            return LLVMLanguage()
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
    register(CPUDevice())
