"""OpenCL's device, memory and queues, through pyopencl."""

from __future__ import annotations

import importlib
from collections import deque
from typing import Any

import numpy as np

from fluidlite.devices.opencl.language import OpenCLLanguage
from fluidlite.kernel_support import new_lock
from fluidlite.plugin import (
    AllocatorBase,
    ContextBase,
    DeviceBase,
    DeviceInfo,
    DeviceLost,
    DeviceUnavailable,
    Event,
    Place,
    Span,
)

QUEUES = 4
# Up to this size a host copy and a queued write (4 us) beat a blocking write (60 us on PoCL); from 64 KB they do not.
MAX_STAGED_BYTES = 32 * 1024
# Copies in flight whose host buffers a context keeps alive; beyond that it waits for the oldest.
MAX_COPIES_IN_FLIGHT = 64


class Board:
    """One OpenCL device with the ``cl.Context`` that all its queues and pools share."""

    def __init__(self, cl: Any, device: Any) -> None:
        self.cl = cl
        self.device = device
        self.context = cl.Context([device])
        self.language = OpenCLLanguage(cl, device)
        self._lost = {cl.status_code.DEVICE_NOT_AVAILABLE, cl.status_code.INVALID_COMMAND_QUEUE}

    def finish(self, wait: Any) -> None:
        """Call ``wait()``; raise DeviceLost if its error means that the device is lost."""
        try:
            wait()
        except self.cl.Error as exc:
            if exc.code in self._lost:
                raise DeviceLost(f"{self.device.name.strip()} no longer answers: {exc}") from exc
            raise


class OpenCLAllocator(AllocatorBase):
    """Buffers of a device; a handle is a ``cl.Buffer``."""

    def __init__(self, board: Board) -> None:
        self._cl = board.cl
        self._limit: int = board.device.max_mem_alloc_size
        # the queue migrates a new buffer to the device, so that a lack of memory is reported here and not later
        self._allocate = board.cl.tools.ImmediateAllocator(board.cl.CommandQueue(board.context))

    def allocate(self, nbytes: int) -> Any:
        if nbytes > self._limit:
            raise MemoryError(
                f"{nbytes} bytes are asked for in one piece; this OpenCL device's limit "
                f"(CL_DEVICE_MAX_MEM_ALLOC_SIZE) is {self._limit}"
            )
        try:
            return self._allocate(nbytes)
        except self._cl.MemoryError as exc:
            raise MemoryError(str(exc)) from exc

    def release(self, handle: Any) -> None:
        """Release a buffer; the driver keeps it until the commands that use it are complete."""
        handle.release()


class OpenCLEvent:
    def __init__(self, board: Board, marker: Any) -> None:
        self.board = board
        self.marker = marker

    def done(self) -> bool:
        """Whether the work before the marker has ended, also with an error (a failed command's status is negative)."""
        status: int = self.marker.command_execution_status
        return status <= 0

    def succeeded(self) -> bool:
        """Whether the work before the marker has ended without an error."""
        status: int = self.marker.command_execution_status
        return status == 0

    def wait(self) -> None:
        if not self.succeeded():  # a wait costs ten times as much as a query
            self.board.finish(self.marker.wait)


class OpenCLStamp(OpenCLEvent):
    """A marker in a queue with profiling enabled."""

    def seconds_since(self, earlier: Any) -> float:
        return 1e-9 * float(self.marker.profile.end - earlier.marker.profile.end)


class OpenCLContext(ContextBase):
    """One in-order command queue."""

    def __init__(self, place: Place, board: Board) -> None:
        super().__init__(place)
        self.board = board
        self._queue = board.cl.CommandQueue(board.context)
        self._last: Any = None  # the event of the last command, or None if another may have been enqueued since
        self._flushed = False
        self._is_profiled = False
        self._copy = board.cl.enqueue_copy
        # pyopencl's event of a host copy holds the host buffer, and blocks when it is dropped too early
        self._copies: deque[Any] = deque(maxlen=MAX_COPIES_IN_FLIGHT)

    @property
    def queue(self) -> Any:
        """The command queue, for enqueueing a command now."""
        self._last = None
        return self._queue

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Write host bytes to a span: a few bytes are staged, without waiting for the queue."""
        if not dst.nbytes:
            return
        if dst.nbytes > MAX_STAGED_BYTES:
            self._copy(self.queue, dst.handle, src, dst_offset=dst.offset, is_blocking=True)
            return
        staged = bytes(src)
        self._copies.append(self._copy(self.queue, dst.handle, staged, dst_offset=dst.offset, is_blocking=False))

    def copy_in_async(self, dst: Span, src: memoryview) -> None:
        if dst.nbytes:
            copy = self._copy(self._queue, dst.handle, src, dst_offset=dst.offset, is_blocking=False)
            self._copies.append(copy)
            self._last, self._flushed = copy, False

    def pinned(self, nbytes: int) -> memoryview:
        """Host memory that the driver allocated for copies (``CL_MEM_ALLOC_HOST_PTR``), mapped once."""
        cl = self.board.cl
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        buffer = cl.Buffer(self.board.context, flags, nbytes)
        both = cl.map_flags.READ | cl.map_flags.WRITE
        array, _ = cl.enqueue_map_buffer(self.queue, buffer, both, 0, (nbytes,), np.uint8)
        view: memoryview = array.data  # the array unmaps and releases the buffer with its last reference
        return view

    def copy_out(self, dst: memoryview, src: Span) -> None:
        if src.nbytes:
            self._copies.append(self._copy(self.queue, dst, src.handle, src_offset=src.offset, is_blocking=False))

    def copy_within(self, dst: Span, src: Span) -> None:
        if src.nbytes:
            self._copy(
                self.queue,
                dst.handle,
                src.handle,
                dst_offset=dst.offset,
                src_offset=src.offset,
                byte_count=src.nbytes,
            )

    def copy_peer(self, dst: Span, dst_context: Any, src: Span) -> bool:
        """Copy to another queue of the same ``cl.Context``: OpenCL buffers are not valid outside their context."""
        if not isinstance(dst_context, OpenCLContext) or dst_context.board is not self.board:
            return False
        self.wait_for(dst_context.record())
        self.copy_within(dst, src)
        dst_context.wait_for(self.record())
        return True

    def record(self) -> Event:
        """Mark the end of the queue and flush it, so that other queues and threads may wait for the event.

        The last command's event is used if it is known: a new marker would wake the driver's thread.
        """
        if self._last is None:
            self._last, self._flushed = self.board.cl.enqueue_marker(self._queue), False
        if not self._flushed:
            self._queue.flush()
            self._flushed = True
        return OpenCLEvent(self.board, self._last)

    def stamp(self) -> OpenCLStamp:
        """Enqueue a marker; the first one replaces the queue by one with profiling enabled."""
        cl = self.board.cl
        if not self._is_profiled:
            self.wait()
            self._last = None
            self._queue = cl.CommandQueue(self.board.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
            self._is_profiled = True
        return OpenCLStamp(self.board, cl.enqueue_marker(self.queue))

    def wait_for(self, event: Event) -> None:
        """Make later work wait for an event; an event of another device blocks the host."""
        if isinstance(event, OpenCLEvent) and event.board is self.board:
            if not event.succeeded():  # a failed event makes this queue fail too
                self.board.cl.enqueue_barrier(self.queue, wait_for=[event.marker])
        else:
            event.wait()

    def wait(self) -> None:
        self.board.finish(self._queue.finish)
        self._copies.clear()

    def close(self) -> None:
        if self._queue is not None:
            self.wait()
            self._queue = self._last = None


class OpenCLDevice(DeviceBase):
    """All OpenCL devices of version 1.2 or later, ordered by platform."""

    kind = "opencl"
    place_name = "OpenCLPlace"

    def __init__(self) -> None:
        self._cl: Any = None
        self._devices: list[Any] = []
        self._boards: dict[int, Board] = {}
        self._lock = new_lock()

    def probe(self) -> int:
        try:
            cl = importlib.import_module("pyopencl")
            importlib.import_module("pyopencl.tools")
        except ImportError as exc:
            raise DeviceUnavailable(f"pyopencl cannot be imported ({exc}); pip install fluidlite[opencl]") from exc
        self._cl = cl
        self._devices = _find_devices(cl)
        if not self._devices:
            raise DeviceUnavailable(
                "no OpenCL 1.2 platform with a device was found; install the driver of your device, or for the CPU, "
                "on Debian: apt-get install pocl-opencl-icd ocl-icd-libopencl1"
            )
        return len(self._devices)

    def info(self, index: int) -> DeviceInfo:
        device = self._devices[index]
        dtypes = DeviceInfo.dtypes
        if "cl_khr_fp64" not in device.extensions.split():
            dtypes = tuple(name for name in dtypes if name != "float64")
        return DeviceInfo(
            name=f"{device.name.strip()} ({device.platform.name.strip()})",
            memory=device.global_mem_size,
            alignment=max(64, device.mem_base_addr_align // 8),  # OpenCL counts it in bits
            queues=QUEUES,
            dtypes=dtypes,
        )

    def allocator(self, index: int) -> OpenCLAllocator:
        return OpenCLAllocator(self._board(index))

    def context(self, index: int, queue: int) -> OpenCLContext:
        """Make a command queue; OpenCL does not number its queues."""
        return OpenCLContext(self.place(index), self._board(index))

    def language(self, index: int) -> OpenCLLanguage:
        return self._board(index).language

    def _board(self, index: int) -> Board:
        with self._lock:
            if index not in self._boards:
                self._boards[index] = Board(self._cl, self._devices[index])
            return self._boards[index]


def _find_devices(cl: Any) -> list[Any]:
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the loader has no driver at all
        return []
    devices: list[Any] = []
    # the loader lists platforms in the order of a folder, which may change: sort them by name
    for platform in sorted(platforms, key=lambda each: (each.name, each.version)):
        try:
            platform_devices = platform.get_devices()
        except cl.Error:  # a driver without a device
            continue
        # "OpenCL 1.2 vendor's text"
        devices += [each for each in platform_devices if tuple(map(int, each.version.split()[1].split("."))) >= (1, 2)]
    return devices
