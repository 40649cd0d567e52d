"""Context: one queue of a place with its error flag and its caches, and how it is closed."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.errors import DeviceError, OutOfRangeError
from fluidlite.base.fork import is_new_child, never_finalize, new_rlock
from fluidlite.base.invalidation import cache_version
from fluidlite.base.lru_cache import CacheInfo, LRUCache
from fluidlite.platform.device_memory import Span
from fluidlite.platform.device_registry import Unit
from fluidlite.platform.guarded_queue import GuardedQueue

_STATUS_BYTES = 32  # long[4]: operator id + 1 or 0, value, bound, unused
_PATIENCE_SECONDS = 5.0
"""Seconds for which ``close`` waits for the run of another thread."""
_MAX_PREPARED = 4096
"""Prepared kernels that a context keeps."""


class Context(GuardedQueue):
    """One in-order queue of a place: the interface of kernels and copies.

    Attributes
    ----------
    place : Place
    unit : Unit
        The device's facts and capabilities.
    raw : ContextBase
        The plugin's own context; unknown attributes of this object are looked up there.
    counts : Counts
    lock : threading.RLock
        Acquired by each user of the queue.
    memory, spare_blocks
        The place's memory, and free blocks of its pool for this context (set by ``fluidlite.memory``).
    idle_tensors, idle_bytes, idle_count
        Unused tensors with memory that runs keep for later operators, by spec; they do not count as used memory.
    prepared : LRUCache
        Kernels prepared for a call, shared by interpreter, nodes and computations.
    """

    def __init__(self, unit: Unit, raw: Any) -> None:
        super().__init__(unit, raw)
        self.lock = new_rlock()
        self.memory: Any = None
        self.spare_blocks: dict[int, list[Any]] = {}
        self.idle_tensors: dict[int, list[Any]] = {}
        self.idle_bytes = 0
        self.idle_count = 0
        self.closed = False
        self.prepared: LRUCache[Any] = LRUCache(_MAX_PREPARED, "prepared kernels", 8 << 20)
        self._status: Span | None = None
        self._status_words: Any = None
        self._allocator: Any = None
        self._may_have_error = False

    def cache_info(self) -> dict[str, CacheInfo]:
        """Statistics of its caches: prepared kernels, compiled kernels, and the kernel language's own caches."""
        infos = {"prepared kernels": self.prepared.info()}
        if self.language is not None:
            infos["compiled kernels"] = self._compiled.info()
            own = getattr(self.language, "cache_info", None)
            infos.update(own() if own is not None else {})
        return infos

    # The status word

    def status_span(self) -> Span:
        """The device's ``long[4]``: operator id + 1 of the first deferred error (0: none), value, bound."""
        if self._status is None:
            alignment = self.unit.info.alignment
            size = -(-_STATUS_BYTES // alignment) * alignment
            with self.guarded("allocating the status word"):
                self._allocator = self.unit.device.allocator(self.place.index)
                self._status = Span(self._allocator.allocate(size), 0, _STATUS_BYTES)
                self.raw.copy_in(self._status, memoryview(bytes(_STATUS_BYTES)))
        self._may_have_error = True
        return self._status

    def status_args(self) -> tuple[Any, int]:
        """The status word as two launch arguments: handle and byte offset."""
        span = self.status_span()
        return span.handle, span.offset

    def status_array(self) -> Any:
        """The status word as an int64 array of the place's namespace."""
        return self.array.wrap(self.status_span(), (4,), "int64", None)

    @property
    def may_have_error(self) -> bool:
        """Whether a kernel that can record a deferred error was launched since the status word was last read."""
        return self._may_have_error

    def has_no_deferred_error(self) -> bool:
        """Whether the host can read, without a copy or a wait, that no deferred error was recorded."""
        if not self._may_have_error or not self.unit.info.host or self.array is None or not self.array.eager:
            return not self._may_have_error
        if self._status_words is None:
            self._status_words = self.status_array()
        if self._status_words[0]:
            return False
        self.counts.status_reads += 1
        self._may_have_error = False
        return True

    def begin_status(self) -> np.ndarray[Any, Any] | None:
        """Enqueue the read of the status word, if a kernel may have set it; the result is valid after :meth:`wait`."""
        if not self._may_have_error or self._status is None:
            return None
        host = np.zeros(4, np.int64)
        with self.guarded("reading the status word"):
            self.raw.copy_out(host.data.cast("B"), self._status)
        self.counts.status_reads += 1
        return host

    def end_status(self, host: np.ndarray[Any, Any] | None) -> tuple[int, int, int] | None:
        """After a wait: return (operator id, value, bound) of the first deferred error and clear it, or return None."""
        if host is None:
            return None
        self._may_have_error = False
        if not host[0]:
            return None
        assert self._status is not None
        with self.guarded("clearing the status word"):
            self.raw.copy_in(self._status, memoryview(bytes(_STATUS_BYTES)))
        return int(host[0]) - 1, int(host[1]), int(host[2])

    def drop_deferred_errors(self) -> None:
        """Clear the status word without reading it, after a run that failed with another error."""
        if not self._may_have_error or self._status is None or self.unit.lost is not None:
            return
        self._may_have_error = False
        try:
            with self.guarded("clearing the status word"):
                self.raw.copy_in(self._status, memoryview(bytes(_STATUS_BYTES)))
        except DeviceError:
            self._may_have_error = True

    def check_index(self, indices: Any, size: int, io: Any) -> Any:
        """Return valid indices: one out of range raises on eager places; elsewhere it is recorded and clipped."""
        xp = self.xp
        if 0 in indices.shape:  # not `size`, which is a method in some libraries
            return indices
        if self.array.eager:
            if int(xp.min(indices)) < 0 or int(xp.max(indices)) >= size:
                flat = xp.reshape(indices, (-1,))
                bad = next(int(v) for v in flat if v < 0 or v >= size)
                raise OutOfRangeError(f"index {bad} is out of range; expected 0 to {size - 1}")
            return indices
        status = self.status_array()
        flat = xp.reshape(indices, (-1,))
        wrong = (flat < 0) | (flat >= size)
        first = xp.argmax(xp.astype(wrong, xp.int32), keepdims=True)
        value = xp.astype(xp.take(flat, first, axis=0), xp.int64)[0]
        failed = (status[0] == 0) & xp.any(wrong)
        for word, content in ((1, value), (2, size), (0, io.op_id + 1)):
            status[word] = xp.where(failed, xp.asarray(content, dtype=xp.int64), status[word])
        return xp.clip(indices, 0, max(size - 1, 0))

    def drop_idle(self) -> None:
        """Drop the unused tensors that runs keep; their memory returns to the pool."""
        self.idle_tensors.clear()
        self.idle_bytes = self.idle_count = 0

    def close(self) -> None:
        """Release the queue and its handles, except those of a parent process.

        It waits for the queue first: other contexts treat the work of a closed context as complete.
        """
        if is_new_child():  # its thread does not exist, and its work is incomplete
            self.closed = True
            never_finalize(self)
            return
        is_locked = self.lock.acquire(timeout=_PATIENCE_SECONDS)  # others hold it only if a run hangs
        try:
            if self.closed:
                return
            if self.unit.inherited:
                self.closed = True
                cache_version.invalidate()
                never_finalize(self)
                return
            try:
                if self.unit.lost is None:
                    self.raw.wait()
            finally:
                self.closed = True
                cache_version.invalidate()
                self._release()
        finally:
            if is_locked:
                self.lock.release()

    def _release(self) -> None:
        self.drop_idle()
        self._compiled.clear()
        self._handles.clear()
        self.prepared.clear()  # a memory pool may keep the context alive
        if self._status is not None and self.unit.lost is None:
            self._allocator.release(self._status.handle)
            self._status = self._status_words = None
        self.raw.close()

    def __repr__(self) -> str:
        return f"Context({str(self.place)!r})"
