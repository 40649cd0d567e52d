"""Checks of a device without operators: small copies, order, events, threads, allocations; and the list of all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np

from fluidlite import memory
from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.conformance import array_checks, transfer_checks
from fluidlite.conformance.device_bytes import equal, pattern, read, subspan, write
from fluidlite.conformance.tolerances import ConformanceError
from fluidlite.platform.context_pool import get_context, new_context
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.render.array_functions import missing_names

DeviceCheck = Callable[[Place], None]
NAMESPACE = "device[namespace]"
"""The first check of a certificate: if it fails, the other checks are meaningless."""

_SIZES = (1, 3, 64, 255, 4097, 1 << 20)
"""Sizes of copies, in bytes."""
_OFFSETS = (0, 1, 7, 64)
"""Offsets of copies in an allocation, in bytes."""


def device_checks() -> dict[str, DeviceCheck]:
    """The checks by name; each takes a place, and raises ConformanceError (or what the device raises)."""
    return {
        NAMESPACE: _namespace,
        "device[round_trip]": _round_trip,
        "device[copy_within]": _copy_within,
        "device[order]": _order,
        "device[events]": _events,
        "device[two_contexts]": _two_contexts,
        "device[threads]": _threads,
        "device[many_allocations]": _many_allocations,
        "device[large_copies]": transfer_checks.large_copies,
        "device[asynchronous_copies]": transfer_checks.asynchronous_copies,
        "device[peer_copies]": transfer_checks.peer_copies,
        "device[late_events]": transfer_checks.late_events,
        "device[events_of_other_devices]": transfer_checks.events_of_other_devices,
        "device[array_views]": array_checks.array_views,
        "device[adopted_arrays]": array_checks.adopted_arrays,
        "device[launch]": array_checks.launch,
        "device[arguments]": array_checks.arguments,
        "device[alignment]": array_checks.alignment,
    }


def _namespace(place: Place) -> None:
    """The array namespace, if there is one, has the required functions, and arrays of the device's dtypes."""
    unit = devices.unit(place)
    if unit.array is None:
        return
    lacks = missing_names(unit.array.xp, unit.array_dtypes)
    if lacks:
        raise ConformanceError(
            f"{place}: its array namespace {getattr(unit.array.xp, '__name__', type(unit.array.xp).__name__)} lacks "
            f"{', '.join(lacks)}, which every namespace must have\n"
            "  Do: add them to what the device gives as xp, or leave dtypes out of its DeviceInfo; "
            "docs/reference/array_namespace.md lists what is needed"
        )
    allocation = memory.alloc(place, 8, get_context(place))
    for dtype in unit.array_dtypes:
        try:
            array = unit.array.wrap(subspan(allocation, 0, ITEMSIZE[dtype]), (1,), dtype, None)
            matches = tuple(array.shape) == (1,) and str(array.dtype).rpartition(".")[2] == dtype
            problem = "" if matches else f"gave {array!r:.80}"
        except Exception as exc:
            problem = f"raised {type(exc).__name__}: {exc}"
        if problem:
            raise ConformanceError(
                f"{place}: wrap(span, (1,), {dtype!r}, None) {problem}"
                f"\n  Do: return an array of it, or leave {dtype} out of DeviceInfo(dtypes=...)"
            )


def _round_trip(place: Place) -> None:
    """Bytes that are copied in are copied out unchanged, for odd offsets and sizes; bytes around them do not change."""
    context = get_context(place)
    for size in _SIZES:
        for offset in _OFFSETS:
            allocation = memory.alloc(place, size + offset + 9, context)
            expected = pattern(size + offset + 9, seed=1)
            write(context, allocation.span(), expected)
            data = pattern(size)
            write(context, subspan(allocation, offset, size), data)
            expected[offset : offset + size] = data
            equal(f"{size} bytes copied in at offset {offset}", place, read(context, allocation.span()), expected)
            part = read(context, subspan(allocation, offset, size))
            equal(f"{size} bytes copied out from offset {offset}", place, part, data)


def _copy_within(place: Place) -> None:
    """Copies within the place, between allocations and within one."""
    context = get_context(place)
    for size in (1, 65, 4099):
        source, target = (memory.alloc(place, size + 16, context) for _ in range(2))
        data = pattern(size + 16)
        write(context, source.span(), data)
        write(context, target.span(), np.zeros_like(data))
        context.copy_within(subspan(target, 5, size), subspan(source, 3, size))
        expected = np.zeros_like(data)
        expected[5 : 5 + size] = data[3 : 3 + size]
        equal(f"copy_within of {size} bytes", place, read(context, target.span()), expected)
    both = memory.alloc(place, 256, context)
    data = pattern(256)
    write(context, both.span(), data)
    context.copy_within(subspan(both, 128, 100), subspan(both, 11, 100))
    data[128:228] = data[11:111]
    equal("copy_within of one allocation", place, read(context, both.span()), data)


def _order(place: Place) -> None:
    """A queue executes in order, and the host buffer may be reused as soon as copy_in returns."""
    context = get_context(place)
    size = 1 << 16
    first, targets = memory.alloc(place, size, context), memory.alloc(place, 20 * size, context)
    host = np.empty(size, np.uint8)
    for value in range(20):
        host[:] = value
        write(context, first.span(), host)
        host[:] = 255
        context.copy_within(subspan(targets, value * size, size), first.span())
    expected = np.repeat(np.arange(20, dtype=np.uint8), size)
    equal("twenty copies in a row", place, read(context, targets.span()), expected)


def _events(place: Place) -> None:
    """An event is done after its wait; the work queued before it is complete as soon as it is done."""
    context = get_context(place)
    allocation = memory.alloc(place, 1 << 16, context)
    data = pattern(1 << 16)
    write(context, allocation.span(), data)
    out = np.zeros_like(data)
    context.copy_out(out.data, allocation.span())
    event = context.record()
    event.wait()
    if not event.done():
        raise ConformanceError(f"{place}: an event is not done() after its wait()")
    equal("a copy out before the event", place, out, data)
    context.wait_for(event)
    context.wait()
    for _ in range(20):
        out[:] = 0
        context.copy_out(out.data, allocation.span())
        event = context.record()
        if event.done():  # without a wait: memory is used again as soon as an event says so
            equal("a copy out before an event that is done", place, out.copy(), data)
        event.wait()


def _two_contexts(place: Place) -> None:
    """A second context sees the writes of the first after waiting for its event."""
    first, second = get_context(place), new_context(place)
    try:
        allocation = memory.alloc(place, 1 << 16, first)
        for seed in range(5):
            data = pattern(1 << 16, seed)
            write(first, allocation.span(), data)
            second.wait_for(first.record())
            equal("a copy on another context", place, read(second, allocation.span()), data)
    finally:
        second.close()


def _threads(place: Place) -> None:
    """Threads with their own contexts do not interfere."""
    started = Barrier(3)

    def work(seed: int) -> None:
        started.wait()  # so that each runs in a thread of its own
        for size in (100, 5000):
            allocation = memory.alloc(place, size, get_context(place))
            data = pattern(size, seed)
            write(get_context(place), allocation.span(), data)
            equal("a thread's own copy", place, read(get_context(place), allocation.span()), data)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))


def _many_allocations(place: Place) -> None:
    """Allocations do not overlap, and all memory is returned."""
    context = get_context(place)
    before = memory.used(place)
    allocations = [memory.alloc(place, 1 + 37 * i, context) for i in range(40)]
    for i, allocation in enumerate(allocations):
        write(context, allocation.span(), pattern(allocation.nbytes, i))
    for i, allocation in enumerate(allocations):
        equal(f"allocation {i} of 40", place, read(context, allocation.span()), pattern(allocation.nbytes, i))
    for allocation in allocations:
        memory.free(allocation, place)
    if memory.used(place) != before:
        raise ConformanceError(f"{place}: {memory.used(place) - before} bytes stay in use after everything was freed")
