"""Context: one queue of a place with its error flag, what runs keep with it, and how it is closed."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.errors import DeviceError, OutOfRangeError
from fluidlite.base.fork import is_new_child, keep_for_ever, new_rlock
from fluidlite.base.invalidation import cache_version
from fluidlite.base.lru_cache import CacheInfo, LRUCache
from fluidlite.platform.device_memory import Span
from fluidlite.platform.device_registry import Unit
from fluidlite.platform.guarded_queue import GuardedQueue

_STATUS_BYTES = 32  # long[4]: 0 or operator id + 1, value, bound, unused
_PATIENCE = 5.0
"""Seconds for which closing waits for a run of another thread to end."""
_MOST_PREPARED = 4096


class Context(GuardedQueue):
    """One in-order queue of a place, as kernels and copies see it.

    Attributes
    ----------
    place : Place
    unit : Unit
        The device's facts and capabilities.
    raw : ContextBase
        The plugin's own context; unknown attributes of this object are looked up there.
    counts : Counts
    lock : threading.RLock
        Held by whoever uses the queue.
    memory, spare_blocks
        The place's memory, and what its pool keeps for this context (set by ``fluidlite.memory``).
    idle_tensors, idle_bytes, idle_count
        Whole tensors that runs keep for their next operators, by spec; they do not count as used.
    prepared : LRUCache
        Kernels that were prepared for a call, which interpreter, nodes and computations share.
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
        self.prepared: LRUCache[Any] = LRUCache(_MOST_PREPARED, "prepared kernels", 8 << 20)
        self._status: Span | None = None
        self._status_words: Any = None
        self._allocator: Any = None
        self._suspect = False

    def cache_info(self) -> dict[str, CacheInfo]:
        """What its caches tell of themselves: prepared kernels, compiled ones, and the kernel language's own caches."""
        found = {"prepared kernels": self.prepared.info()}
        if self.language is not None:
            found["compiled kernels"] = self._compiled.info()
            own = getattr(self.language, "cache_info", None)
            found.update(own() if own is not None else {})
        return found

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
        self._suspect = True
        return self._status

    def status_args(self) -> tuple[Any, int]:
        """The status word as two launch arguments: handle and byte offset."""
        span = self.status_span()
        return span.handle, span.offset

    def status_array(self) -> Any:
        """The status word as an int64 array of the place's namespace."""
        return self.array.wrap(self.status_span(), (4,), "int64", None)

    @property
    def suspect(self) -> bool:
        """Whether a kernel that can record a deferred error was launched since the status word was last read."""
        return self._suspect

    def nothing_late(self) -> bool:
        """Whether the host sees, without a copy or a wait, that no deferred error was recorded."""
        if not self._suspect or not self.unit.info.host or self.array is None or not self.array.eager:
            return not self._suspect
        if self._status_words is None:
            self._status_words = self.status_array()
        if self._status_words[0]:
            return False
        self.counts.status_reads += 1
        self._suspect = False
        return True

    def begin_status(self) -> np.ndarray[Any, Any] | None:
        """Enqueue the read of the status word if a kernel may have set it; valid after :meth:`wait`."""
        if not self._suspect or self._status is None:
            return None
        host = np.zeros(4, np.int64)
        with self.guarded("reading the status word"):
            self.raw.copy_out(host.data.cast("B"), self._status)
        self.counts.status_reads += 1
        return host

    def end_status(self, host: np.ndarray[Any, Any] | None) -> tuple[int, int, int] | None:
        """After a wait: (operator id, value, bound) of the first deferred error, which is cleared, or None."""
        if host is None:
            return None
        self._suspect = False
        if not host[0]:
            return None
        assert self._status is not None
        with self.guarded("clearing the status word"):
            self.raw.copy_in(self._status, memoryview(bytes(_STATUS_BYTES)))
        return int(host[0]) - 1, int(host[1]), int(host[2])

    def forget_late(self) -> None:
        """Clear the status word without reading it: the run that may have set it has failed otherwise."""
        if not self._suspect or self._status is None or self.unit.lost is not None:
            return
        self._suspect = False
        try:
            with self.guarded("clearing the status word"):
                self.raw.copy_in(self._status, memoryview(bytes(_STATUS_BYTES)))
        except DeviceError:
            self._suspect = True

    def check_index(self, indices: Any, size: int, io: Any) -> Any:
        """Return indices made safe: one out of range raises at once on eager places, else is recorded and clipped."""
        xp = self.xp
        if 0 in indices.shape:  # not `size`: a method of some arrays
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
        for word, found in ((1, value), (2, size), (0, io.op_id + 1)):
            status[word] = xp.where(failed, xp.asarray(found, dtype=xp.int64), status[word])
        return xp.clip(indices, 0, max(size - 1, 0))

    def drop_idle(self) -> None:
        """Let go of the tensors that runs keep; their memory goes back to the pool."""
        self.idle_tensors.clear()
        self.idle_bytes = self.idle_count = 0

    def close(self) -> None:
        """Let go of the queue and its handles; those of a parent process stay as they are.

        It is closed once its work is done: others take what it wrote, and its memory, as done then.
        """
        if is_new_child():  # its thread is not here, and its work is half done
            self.closed = True
            keep_for_ever(self)
            return
        held = self.lock.acquire(timeout=_PATIENCE)  # nobody is about to wait for the queue; a run that hangs may be
        try:
            if self.closed:
                return
            if self.unit.inherited:
                self.closed = True
                cache_version.invalidate()
                keep_for_ever(self)
                return
            try:
                if self.unit.lost is None:
                    self.raw.wait()
            finally:
                self.closed = True
                cache_version.invalidate()
                self._let_go()
        finally:
            if held:
                self.lock.release()

    def _let_go(self) -> None:
        self.drop_idle()
        self._compiled.clear()
        self._handles.clear()
        self.prepared.clear()  # a pool may keep the context for long
        if self._status is not None and self.unit.lost is None:
            self._allocator.release(self._status.handle)
            self._status = self._status_words = None
        self.raw.close()

    def __repr__(self) -> str:
        return f"Context({str(self.place)!r})"
