"""Checks of copies and events of a device that take long, run in the background, or cross queues and devices."""

from __future__ import annotations

import numpy as np

from fluidlite import memory
from fluidlite.conformance.cases import Array
from fluidlite.conformance.device_bytes import equal, pattern, read, subspan, write
from fluidlite.conformance.tolerances import ConformanceError
from fluidlite.platform.context_pool import get_context, new_context
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place

_LARGE_BYTES = (5 << 20) + 3
"""Bytes of a copy that a device may split."""
_SLOW_BYTES, _SLOW_COPIES = 1 << 24, 8
"""Copies that are still in progress when the host goes on."""


def _affordable(place: Place, nbytes: int) -> int:
    """Return ``nbytes``, or a sixteenth of the memory that the device states if that is less."""
    memory_bytes = devices.unit(place).info.memory
    return nbytes if memory_bytes is None else min(nbytes, memory_bytes // 16)


def large_copies(place: Place) -> None:
    """Copies of several MiB are whole, in, out and within, at offsets, and their allocations do not overlap."""
    context, nbytes = get_context(place), _affordable(place, _LARGE_BYTES)
    source, target = (memory.alloc(place, nbytes + 8, context) for _ in range(2))
    data, expected = pattern(nbytes + 8), pattern(nbytes + 8, seed=1)
    write(context, source.span(), data)
    write(context, target.span(), expected)
    equal("a large copy in and out", place, read(context, source.span()), data)
    equal("a part of a large copy", place, read(context, subspan(source, 3, nbytes)), data[3 : 3 + nbytes])
    context.copy_within(subspan(target, 4, nbytes), subspan(source, 4, nbytes))
    expected[4 : 4 + nbytes] = data[4 : 4 + nbytes]
    equal("a large copy within", place, read(context, target.span()), expected)


def asynchronous_copies(place: Place) -> None:
    """Copies from pinned memory, if the device has it, write all bytes at their offset."""
    context = get_context(place)
    for size in (1, 67, 4099):
        allocation = memory.alloc(place, size + 16, context)
        data, expected = pattern(size), pattern(size + 16, seed=1)
        write(context, allocation.span(), expected)
        pinned = context.pinned(size)
        host = memoryview(bytearray(size)) if pinned is None else pinned.cast("B")[:size]
        host[:] = data.data
        context.copy_in_async(subspan(allocation, 7, size), host)
        expected[7 : 7 + size] = data
        equal(f"copy_in_async of {size} bytes", place, read(context, allocation.span()), expected)


def peer_copies(place: Place) -> None:
    """Copies between queues write all bytes at their offset, or the device says that it has none."""
    first, second = get_context(place), new_context(place)
    try:
        for size in (1, 67, 1 << 16):
            source, target = memory.alloc(place, size + 16, first), memory.alloc(place, size + 16, second)
            data, expected = pattern(size + 16), np.zeros(size + 16, np.uint8)
            for context, span, content in ((first, source.span(), data), (second, target.span(), expected)):
                write(context, span, content)
                context.wait()
            if not first.copy_peer(subspan(target, 5, size), second, subspan(source, 3, size)):
                return
            for context in (first, second):
                context.wait()
            expected[5 : 5 + size] = data[3 : 3 + size]
            equal(f"copy_peer of {size} bytes", place, read(second, target.span()), expected)
    finally:
        second.close()


def late_events(place: Place) -> None:
    """An event is done, and lets another queue continue, only after work that was in progress when it was recorded."""
    first, second, nbytes = get_context(place), new_context(place), _affordable(place, _SLOW_BYTES)
    try:
        source, target = (memory.alloc(place, nbytes, first) for _ in range(2))
        received = memory.alloc(place, nbytes, second)
        data, zeros = pattern(nbytes), np.zeros(nbytes, np.uint8)
        write(first, source.span(), data)

        def copy_slowly() -> None:
            write(first, target.span(), zeros)
            first.wait()
            for _ in range(_SLOW_COPIES):
                first.copy_within(target.span(), source.span())

        def check(subject: str, content: Array) -> None:
            equal(subject, place, content[-4096:], data[-4096:])  # the last bytes arrive last

        for _ in range(3):
            write(second, received.span(), zeros)
            copy_slowly()
            second.wait_for(first.record())
            second.copy_within(received.span(), target.span())
            check("a copy after wait_for", read(second, received.span()))
            out = np.zeros(nbytes, np.uint8)
            copy_slowly()
            first.copy_out(out.data, target.span())
            event = first.record()
            if event.done():
                check("a copy out before an event that is done", out.copy())
            event.wait()
            check("a copy out before an event that was waited for", out)
    finally:
        second.close()


class _OtherDevicesEvent:
    """An event that no queue of the place knows."""

    waited = False

    def done(self) -> bool:
        return self.waited

    def wait(self) -> None:
        self.waited = True


def events_of_other_devices(place: Place) -> None:
    """A queue waits for an event of another device."""
    context, event = get_context(place), _OtherDevicesEvent()
    context.wait_for(event)
    allocation = memory.alloc(place, 64, context)
    write(context, allocation.span(), np.zeros(64, np.uint8))
    context.wait()
    if not event.waited:
        raise ConformanceError(f"{place}: work after wait_for did not wait for an event of another device")
