"""Queues of a device: the context class that plugins implement, its events and its copies."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

from fluidlite.platform.device_memory import Span
from fluidlite.platform.place import Place


@runtime_checkable
class Event(Protocol):
    """A point in a queue."""

    def done(self) -> bool:
        """Whether the work before the point has finished. Callable from any thread."""
        ...

    def wait(self) -> None:
        """Block until that work has finished; raise its error. Callable from any thread."""
        ...


class Stamp(Protocol):
    """A point in a queue with the time at which the device reached it, by the device's clock."""

    def wait(self) -> None:
        """Block until the queue reached the point; raise its error. Callable from any thread."""
        ...

    def seconds_since(self, earlier: Stamp) -> float:
        """Seconds from another stamp of the same queue to this one; call it after ``wait`` of both."""
        ...


class DoneEvent:
    """The event of work that has already finished."""

    def done(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> None:
        """Return at once."""
        return None


class ContextBase:
    """One in-order queue and the library handles of its place; one thread at a time.

    Defaults: no events (``record`` waits), copies inside a place through the host.
    """

    threads: int | None = None

    def __init__(self, place: Place) -> None:
        self.place = place

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Enqueue a copy from host to device; to be defined. ``src`` (contiguous bytes) may be reused on return."""
        raise NotImplementedError(f"{type(self).__name__} must define copy_in")

    def copy_in_async(self, dst: Span, src: memoryview) -> None:
        """Enqueue a copy from host to device; ``src`` stays unchanged until a later event. Here: ``copy_in``."""
        self.copy_in(dst, src)

    def pinned(self, nbytes: int) -> memoryview | None:
        """Return page-locked host memory for ``copy_in_async``; None: the device has none.

        It is released with its last reference.
        """
        return None

    def copy_out(self, dst: memoryview, src: Span) -> None:
        """Enqueue a copy to the host; to be defined. ``dst`` (writable bytes) is valid after ``wait`` or an event."""
        raise NotImplementedError(f"{type(self).__name__} must define copy_out")

    def copy_within(self, dst: Span, src: Span) -> None:
        """Copy inside the place, between ranges that do not overlap. Here: through the host, which is slow."""
        host = memoryview(bytearray(src.nbytes))
        self.copy_out(host, src)
        self.wait()
        self.copy_in(dst, host)

    def copy_peer(self, dst: Span, dst_context: ContextBase, src: Span) -> bool:
        """Copy directly to another place; return False to let the framework copy through the host."""
        return False

    def record(self) -> Event:
        """Record an event at this point of the queue. Here: wait for the queue."""
        self.wait()
        return DoneEvent()

    def stamp(self) -> Stamp | None:
        """Record a timed event at this point of the queue. Here: None, the device has no timed events.

        Profilers use it between launches; without it they wait for the queue there.
        """
        return None

    def wait_for(self, event: Event) -> None:
        """Make later work wait for an event, which may be of another device. Here: the host waits."""
        event.wait()

    def wait(self) -> None:
        """Block until the queue is idle; to be defined. Raise the error of its work, or DeviceLost."""
        raise NotImplementedError(f"{type(self).__name__} must define wait")

    def close(self) -> None:
        """Release the queue and its handles; may be called twice."""

    def activate(self) -> AbstractContextManager[Any]:
        """Make this queue the current one of its library (global state); entered once a run, not once a kernel."""
        return nullcontext()
