"""Shared memory of the processes of one machine: an anonymous sparse file for each process, mapped by all."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import secrets
from typing import Any
from weakref import WeakSet, finalize

import numpy as np

from fluidlite.base.fork import new_lock
from fluidlite.distributed.groups import Array

ALIGNMENT = 4096
HEADER_BYTES = 1 << 16
"""Bytes of the header, in which members post their progress; allocations follow it."""
TOKEN = 0
"""The header's word with a random number that identifies the file."""
_MAP_PRIVATE_FIXED = 0x02 | 0x10 | 0x4000
"""Linux's MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE."""
_heaps: WeakSet[SharedHeap] = WeakSet()


def available() -> bool:
    """Whether the system has anonymous files, and the processor makes stores visible in program order."""
    return hasattr(os, "memfd_create") and platform.machine() in ("x86_64", "AMD64")


class MappedFile:
    """The shared file of a process, mapped into this one.

    ``bytes``: uint8.
    ``words``: the header.
    """

    def __init__(self, file: int, nbytes: int) -> None:
        self._map = mmap.mmap(file, nbytes)
        self.bytes: Array = np.frombuffer(self._map, np.uint8)
        self.words = memoryview(self._map)[:HEADER_BYTES].cast("q")

    @property
    def token(self) -> int:
        """The random number of the file's owner."""
        return int(self.words[TOKEN])


class SharedHeap(MappedFile):
    """The memory of this process that others map: only its allocations take memory, since the file is sparse.

    In a forked child the mapping becomes a private copy.

    ``file``: the descriptor that others open as ``/proc/PID/fd/FILE``.
    ``address``: its address in this process.
    """

    def __init__(self) -> None:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.nbytes = max(-(-pages // ALIGNMENT) * ALIGNMENT, 2 * HEADER_BYTES)
        self.file: int = os.memfd_create("fluidlite-shared")
        try:
            os.ftruncate(self.file, self.nbytes)
            super().__init__(self.file, self.nbytes)
        except BaseException:
            os.close(self.file)
            raise
        self.address: int = self.bytes.ctypes.data
        self.words[TOKEN] = secrets.randbits(62)
        self._free = [(HEADER_BYTES, self.nbytes - HEADER_BYTES)]
        self._lock = new_lock()
        self._process = os.getpid()
        _heaps.add(self)

    def allocate(self, nbytes: int) -> Array:
        """Return page-aligned shared bytes; they are released with the last array that views them.

        Raises MemoryError if no free range is large enough.
        """
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        with self._lock:
            for i, (offset, free) in enumerate(self._free):
                if free >= size:
                    self._free[i : i + 1] = [(offset + size, free - size)] if free > size else []
                    break
            else:
                raise MemoryError(f"no piece of {nbytes:,} bytes is left of {self.nbytes:,} that processes share")
        base = (ctypes.c_uint8 * size).from_buffer(self._map, offset)
        finalize(base, self._release, offset, size).atexit = False
        result: Array = np.frombuffer(memoryview(base), np.uint8)[:nbytes]
        return result

    def offset_of(self, array: Array) -> int | None:
        """The offset of a contiguous array in this memory; None if it is elsewhere."""
        offset = int(array.__array_interface__["data"][0]) - self.address
        return offset if offset >= HEADER_BYTES and offset + array.nbytes <= self.nbytes else None

    def _release(self, offset: int, size: int) -> None:
        if os.getpid() == self._process:
            self._map.madvise(mmap.MADV_REMOVE, offset, size)
        with self._lock:
            pieces = sorted([*self._free, (offset, size)])
            self._free = pieces[:1]
            for begin, length in pieces[1:]:
                last_begin, last_length = self._free[-1]
                if last_begin + last_length == begin:
                    self._free[-1] = last_begin, last_length + length
                else:
                    self._free.append((begin, length))

    def leave_to_parent(self) -> None:
        """In a forked child: replace the mapping by a private copy."""
        libc: Any = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(self.address, self.nbytes, protection, _MAP_PRIVATE_FIXED, self.file, 0)
        if address != self.address:  # further writes would change the parent's memory
            os._exit(70)


def open_mapping(pid: int, file: int, nbytes: int, token: int) -> MappedFile:
    """Map the file of another process of this machine.

    Raises OSError if it cannot be opened or is another file: the process runs on another machine or in another
    container.
    """
    handle = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
    try:
        if os.fstat(handle).st_size != nbytes:
            raise OSError(f"/proc/{pid}/fd/{file} is another file")
        mapping = MappedFile(handle, nbytes)
    finally:
        os.close(handle)
    if mapping.token != token:
        raise OSError(f"/proc/{pid}/fd/{file} is another process's")
    return mapping


def _leave_to_parent() -> None:
    for heap in _heaps:
        heap.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
