"""The context pool: one default context for each place and thread, and further ones on request."""

from __future__ import annotations

import atexit
import itertools
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

from fluidlite.base.errors import DeviceError, PlaceError
from fluidlite.base.fork import acquire_at_fork, new_rlock
from fluidlite.base.log import logger
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.platform.context import Context
from fluidlite.platform.device_context import ContextBase
from fluidlite.platform.device_memory import Span
from fluidlite.platform.device_registry import Unit, checked_result, devices
from fluidlite.platform.place import Place, PlaceLike

_local = threading.local()
_all: WeakObjects[Context] = WeakObjects()
_queues: dict[Place, itertools.count[int]] = {}
_lock = new_rlock()
PATIENCE_AT_EXIT = 20.0
"""Seconds for which the end of a process waits for its queues; a hanging queue does not block it."""


class _PerThread(dict[Place, Context]):
    """A thread's default contexts; they close when the thread ends."""

    def __del__(self) -> None:
        for context in self.values():
            try:
                context.close()
            except Exception as exc:
                logger.debug("closing %r: %s", context, exc)


def get_context(place: PlaceLike) -> Context:
    """The calling thread's default context of a place.

    Raises PlaceError, DeviceUnavailable, DeviceLost or DeviceError if the place cannot be used.
    """
    if type(place) is not Place:
        place = Place.parse(place)
    try:
        contexts: _PerThread = _local.contexts
    except AttributeError:
        contexts = _local.contexts = _PerThread()
    context = contexts.get(place)
    if context is None or context.unit.removed:
        context = contexts[place] = new_context(place)
    context.unit.raise_if_lost()
    return context


@contextmanager
def using(context: Context) -> Iterator[None]:
    """Make a context the thread's default of its place inside the block."""
    place = context.place
    previous = get_context(place)
    contexts: _PerThread = _local.contexts
    contexts[place] = context
    try:
        yield
    finally:
        contexts[place] = previous


def new_context(place: PlaceLike, queue: int | None = None) -> Context:
    """Create a further context of a place.

    ``queue``: the number of the device's queue, from 0; by default contexts use the queues in turn.
    Raises PlaceError if the device has no such queue.
    """
    unit = devices.unit(place)
    unit.raise_if_lost()
    queues = max(unit.info.queues, 1)
    if queue is not None and (isinstance(queue, bool) or not isinstance(queue, int) or not 0 <= queue < queues):
        has = f"{queues} queues; expected a number from 0 to {queues - 1}" if queues > 1 else "one queue; expected 0"
        raise PlaceError(f"{unit.place} has no queue {queue!r}: it has {has}")
    with _lock:
        if queue is None:
            queue = next(_queues.setdefault(unit.place, itertools.count())) % queues
        index = unit.place.index
        try:
            raw = checked_result(
                f"context({index}, {queue})", unit.device.context(index, queue), "copy_in", "copy_out", "wait"
            )
            context = Context(unit, raw)
        except Exception as exc:
            unit.fail(exc, "making a context")
        if not unit.checked and unit.info.computes:
            _check_round_trip(unit, context)
            unit.checked = True
        _all.add(context)
    return context


def _check_round_trip(unit: Unit, context: Context) -> None:
    """Copy bytes to a device and back before its first use; raise DeviceError if they differ."""
    size = max(unit.info.alignment, 64)
    size = -(-size // unit.info.alignment) * unit.info.alignment
    sent = bytes((7 * i + 3) % 251 for i in range(size))
    back = bytearray(size)
    index = unit.place.index
    with context.guarded("checking its copies"):
        allocator = checked_result(f"allocator({index})", unit.device.allocator(index), "allocate", "release")
        handle = allocator.allocate(size)
        with context.raw.activate():
            pass
        try:
            context.raw.copy_in(Span(handle, 0, size), memoryview(sent))
            context.raw.copy_out(memoryview(back), Span(handle, 0, size))
            context.raw.wait()
        finally:
            allocator.release(handle)
    if bytes(back) != sent:
        wrong = next(i for i in range(size) if back[i] != sent[i])
        raise DeviceError(
            f"{unit.place} is not usable: copy_out brought back other bytes than copy_in wrote "
            f"(from byte {wrong} of {size})"
        )


def open_contexts() -> list[Context]:
    return [context for context in _all if not context.closed]


acquire_at_fork(lambda: [context.lock for context in open_contexts() if context.unit.info.fork_safe])
# So a fork waits for the runs of other threads: a library that they call (BLAS) may hold locks of its own. Devices that
# are lost in the child do not matter.


def _becomes_idle(context: Context, deadline: float) -> bool:
    """Whether a queue becomes idle before a time; True if its events cannot be polled: ``close`` then waits for it."""
    unusable = context.unit.lost is not None or context.unit.removed
    if unusable or getattr(type(context.raw), "record", None) is ContextBase.record:
        return True
    with suppress(Exception):  # closing it reports the error
        event = context.raw.record()
        while not event.done():
            if monotonic() > deadline:
                return False
            sleep(0.001)
    return True


@atexit.register
def _close_all() -> None:
    deadline = monotonic() + PATIENCE_AT_EXIT
    for context in open_contexts():
        try:
            if _becomes_idle(context, deadline):
                context.close()
            else:
                context.unit.lost = "its queue hangs"
                message = f"{context!r} is left open: its queue has not ended in {PATIENCE_AT_EXIT:g} s"
                warnings.warn(message, RuntimeWarning, stacklevel=1)
        except Exception as exc:
            logger.debug("closing %r at exit: %s", context, exc)
