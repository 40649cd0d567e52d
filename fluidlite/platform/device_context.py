"""Queues of a device: the context that a plugin gives, its events and its copies."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

from fluidlite.platform.device_memory import Span
from fluidlite.platform.place import Place


@runtime_checkable
class Event(Protocol):
    """A point in a queue."""

    def done(self) -> bool:
        """Whether the work before it has finished. Callable from any thread."""
        ...

    def wait(self) -> None:
        """Block until it has; raise what failed."""
        ...


class Stamp(Protocol):
    """A point in a queue that has the time at which the device got there, by the device's own clock."""

    def wait(self) -> None:
        """Block until the queue got there; raise what failed. Callable from any thread."""
        ...

    def seconds_since(self, earlier: Stamp) -> float:
        """Seconds from another stamp of the same queue to this one; both have been waited for."""
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

    Its defaults: no events (recording waits), copies inside a place through the host.
    """

    threads: int | None = None

    def __init__(self, place: Place) -> None:
        self.place = place

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Enqueue host to device; to be defined. ``src`` (contiguous bytes) may be reused on return."""
        raise NotImplementedError(f"{type(self).__name__} must define copy_in")

    def copy_in_async(self, dst: Span, src: memoryview) -> None:
        """Enqueue host to device; ``src`` stays as it is until a later event: here ``copy_in``, which may wait."""
        self.copy_in(dst, src)

    def pinned(self, nbytes: int) -> memoryview | None:
        """Return page-locked host memory that ``copy_in_async`` reads at full speed; None: the device has none.

        It is given back when the last reference to it is gone.
        """
        return None

    def copy_out(self, dst: memoryview, src: Span) -> None:
        """Enqueue device to host; to be defined. ``dst`` (writable bytes) is valid after ``wait`` or a later event."""
        raise NotImplementedError(f"{type(self).__name__} must define copy_out")

    def copy_within(self, dst: Span, src: Span) -> None:
        """Copy inside the place, between ranges that do not overlap: here through the host, which devices do better."""
        host = memoryview(bytearray(src.nbytes))
        self.copy_out(host, src)
        self.wait()
        self.copy_in(dst, host)

    def copy_peer(self, dst: Span, dst_context: ContextBase, src: Span) -> bool:
        """Copy straight to another place; False: the framework goes through the host."""
        return False

    def record(self) -> Event:
        """Mark this point of the queue: here by waiting for it."""
        self.wait()
        return DoneEvent()

    def stamp(self) -> Stamp | None:
        """Mark this point of the queue, and note the time there; here None: the device has no timed events.

        Profilers ask for it between launches; without it they wait for the queue there.
        """
        return None

    def wait_for(self, event: Event) -> None:
        """Make later work wait for an event, which may be of another device: here the host waits."""
        event.wait()

    def wait(self) -> None:
        """Block until the queue is idle; to be defined. Raise what failed, DeviceLost if the device is gone."""
        raise NotImplementedError(f"{type(self).__name__} must define wait")

    def close(self) -> None:
        """Let go of the queue and its handles, if there are any; may be called twice."""

    def activate(self) -> AbstractContextManager[Any]:
        """Make this queue the current one of its library's globals; entered once around a run, not per kernel."""
        return nullcontext()
