"""Calls of a plugin's context: they are counted, and exceptions name the place and the action."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

from fluidlite.base.errors import CompileError, DeviceError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.base.opt_level import opt_level
from fluidlite.platform.device_context import DoneEvent, Event, Stamp
from fluidlite.platform.device_memory import Span
from fluidlite.platform.device_registry import Unit

_MAX_COMPILED = 4096
"""Compiled kernels that a context keeps."""


@dataclass
class Counts:
    """Counts and bytes of a context's copies. Reads of the status word are counted separately."""

    copy_in: int = 0
    copy_out: int = 0
    copy_within: int = 0
    copy_peer: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    launches: int = 0
    status_reads: int = 0

    def reset(self) -> None:
        """Set every count to zero."""
        for name in self.__dataclass_fields__:
            setattr(self, name, 0)


class Guard:
    """A context manager that re-raises a plugin's exceptions by :meth:`Unit.fail`; a lost device is not entered."""

    __slots__ = "_unit", "_what"

    def __init__(self, unit: Unit, what: str) -> None:
        self._unit, self._what = unit, what

    def __enter__(self) -> None:
        self._unit.raise_if_lost()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception):
            self._unit.fail(error, self._what)


class GuardedQueue:
    """A plugin's queue, its library handles and compiled kernels; unknown attributes are looked up in ``raw``."""

    def __init__(self, unit: Unit, raw: Any) -> None:
        self.unit = unit
        self.raw = raw
        self.place = unit.place
        self.array = unit.array
        self.xp: Any = unit.array.xp if unit.array is not None else None
        self.language = unit.language
        self.counts = Counts()
        self._compiled: LRUCache[Any] = LRUCache(_MAX_COMPILED, "compiled kernels", 64 << 20)
        self._handles: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "raw":  # not yet set: a constructor failed
            raise AttributeError(name)
        return getattr(self.raw, name)

    @property
    def threads(self) -> int | None:
        """The number of threads that a kernel may use; None: the library decides."""
        return getattr(self.raw, "threads", None)

    @threads.setter
    def threads(self, number: int | None) -> None:
        self.raw.threads = number

    def guarded(self, what: str) -> AbstractContextManager[None]:
        """Return a context manager that adds the place and the action ``what`` to exceptions of the plugin."""
        return Guard(self.unit, what)

    def fail(self, exc: Exception, what: str) -> NoReturn:
        """Re-raise a plugin's exception with the place and the action ``what``."""
        self.unit.fail(exc, what)

    # Copies

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Copy host bytes to the device; ``src`` may be reused on return."""
        if not dst.nbytes:
            return
        self.unit.raise_if_lost()
        try:  # not `guarded`: its text costs as much as a small copy
            self.raw.copy_in(dst, src)
        except Exception as exc:
            self.fail(exc, f"copying {dst.nbytes} bytes in")
        self.counts.copy_in += 1
        self.counts.bytes_in += dst.nbytes

    def copy_in_async(self, dst: Span, src: memoryview) -> None:
        """Copy host bytes to the device; ``src`` stays unchanged until a later event has completed."""
        if not dst.nbytes:
            return
        copy = getattr(self.raw, "copy_in_async", self.raw.copy_in)
        self.unit.raise_if_lost()
        try:
            copy(dst, src)
        except Exception as exc:
            self.fail(exc, f"copying {dst.nbytes} bytes in")
        self.counts.copy_in += 1
        self.counts.bytes_in += dst.nbytes

    def pinned(self, nbytes: int) -> memoryview | None:
        """Return page-locked host memory of ``nbytes`` (1 or more), or None where the device has none."""
        make = getattr(self.raw, "pinned", None)
        if make is None:
            return None
        with self.guarded(f"allocating {nbytes} bytes of page-locked host memory"):
            memory: memoryview | None = make(nbytes)
        if memory is not None and (memory.nbytes < nbytes or memory.readonly):
            raise DeviceError(f"{self.place} gave {memory.nbytes} bytes of page-locked memory; {nbytes} were asked for")
        return memory

    def copy_out(self, dst: memoryview, src: Span) -> None:
        """Copy device bytes to the host; ``dst`` is valid after :meth:`wait`."""
        if not src.nbytes:
            return
        self.unit.raise_if_lost()
        try:
            self.raw.copy_out(dst, src)
        except Exception as exc:
            self.fail(exc, f"copying {src.nbytes} bytes out")
        self.counts.copy_out += 1
        self.counts.bytes_out += src.nbytes

    def copy_within(self, dst: Span, src: Span) -> None:
        """Copy inside the place."""
        if not dst.nbytes:
            return
        with self.guarded(f"copying {dst.nbytes} bytes inside"):
            self.raw.copy_within(dst, src)
        self.counts.copy_within += 1

    def copy_peer(self, dst: Span, dst_context: GuardedQueue, src: Span) -> bool:
        """Copy directly to another place's context; return False if the plugin cannot."""
        with self.guarded(f"copying {src.nbytes} bytes to {dst_context.place}"):
            done: bool = self.raw.copy_peer(dst, dst_context.raw, src)
        self.counts.copy_peer += done
        return done

    # Order

    def record(self) -> Event:
        """Record an event at this point of the queue; the work of a closed queue is complete."""
        try:
            with self.guarded("recording an event"):
                event: Event = self.raw.record()
                return event
        except DeviceError:
            if not self.closed:  # its own thread may have closed it meanwhile
                raise
            return DoneEvent()

    def stamp(self) -> Stamp | None:
        """Record a timed event at this point of the queue; None if the device has none."""
        make = getattr(self.raw, "stamp", None)
        if make is None:
            return None
        with self.guarded("recording a timed event"):
            stamp: Stamp | None = make()
        return stamp

    def wait_for(self, event: Event) -> None:
        """Make later work wait for the event."""
        with self.guarded("waiting for an event"):
            self.raw.wait_for(event)

    def wait(self) -> None:
        """Block until the queue is idle."""
        self.unit.raise_if_lost()
        try:
            self.raw.wait()
        except Exception as exc:
            self.fail(exc, "waiting for the queue")

    # Library handles and compiled kernels

    def handle(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a library handle, created at its first use and kept with the context."""
        handle = self._handles.get(name)
        if handle is None:
            with self.guarded(f"making the handle {name!r}"):
                handle = self._handles[name] = make()
        return handle

    def compile(self, source: str, entry: str, parameters: tuple[str, ...], form: Hashable = None) -> Any:
        """Compile kernel language source once; ``parameters`` are "buffer" or dtype names.

        Sources of equal ``form`` and parameters differ in names only: the first of them is compiled for all.
        """

        def make() -> Any:
            try:
                with self.guarded(f"compiling {entry}"):
                    return self.language.compile(self.raw, source, entry, parameters)
            except CompileError as exc:
                raise CompileError(f"{self.place} refused the generated kernel {entry}:\n{exc}", source) from exc

        return self._compiled.get((form or (source, entry), parameters, opt_level()), make)

    def launch(self, kernel: Any, items: int, args: Sequence[Any], group: int | None = None) -> None:
        """Enqueue ``items`` work items of a compiled kernel."""
        if items <= 0:
            return
        self.counts.launches += 1
        try:
            self.language.launch(self.raw, kernel, items, args, group)
        except Exception as exc:
            self.fail(exc, "launching a kernel")
