"""Checks of a device without operators: copies, events, array views and compiler."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np

from fluidlite import memory
from fluidlite.base.dtypes import ITEMSIZE, NUMPY
from fluidlite.conformance.cases import Array
from fluidlite.conformance.tolerances import ConformanceError
from fluidlite.memory import Allocation
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context, new_context
from fluidlite.platform.device_memory import Span
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
        "device[array_views]": _array_views,
        "device[launch]": _launch,
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
            array = unit.array.wrap(_subspan(allocation, 0, ITEMSIZE[dtype]), (1,), dtype, None)
            matches = tuple(array.shape) == (1,) and str(array.dtype).rpartition(".")[2] == dtype
            problem = "" if matches else f"gave {array!r:.80}"
        except Exception as exc:
            problem = f"raised {type(exc).__name__}: {exc}"
        if problem:
            raise ConformanceError(
                f"{place}: wrap(span, (1,), {dtype!r}, None) {problem}"
                f"\n  Do: return an array of it, or leave {dtype} out of DeviceInfo(dtypes=...)"
            )


def _pattern(nbytes: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def _subspan(allocation: Allocation, offset: int, nbytes: int) -> Span:
    whole = allocation.span()
    return Span(whole.handle, whole.offset + offset, nbytes)


def _write(context: Context, span: Span, data: Array) -> None:
    context.copy_in(span, data.data.cast("B"))


def _read(context: Context, span: Span) -> Array:
    out = np.empty(span.nbytes, np.uint8)
    context.copy_out(out.data, span)
    context.wait()
    return out


def _equal(subject: str, place: Place, actual: Array, expected: Array) -> None:
    if actual.shape != expected.shape or not np.array_equal(actual, expected):
        errors = np.flatnonzero(actual.ravel() != expected.ravel())
        raise ConformanceError(
            f"{place}: {subject}: {errors.size} of {expected.size} elements are wrong, the first at {int(errors[0])}: "
            f"{actual.ravel()[errors[0]]}, expected {expected.ravel()[errors[0]]}"
        )


def _round_trip(place: Place) -> None:
    """Bytes that are copied in are copied out unchanged, for odd offsets and sizes; bytes around them do not change."""
    context = get_context(place)
    for size in _SIZES:
        for offset in _OFFSETS:
            allocation = memory.alloc(place, size + offset + 9, context)
            expected = _pattern(size + offset + 9, seed=1)
            _write(context, allocation.span(), expected)
            data = _pattern(size)
            _write(context, _subspan(allocation, offset, size), data)
            expected[offset : offset + size] = data
            _equal(f"{size} bytes copied in at offset {offset}", place, _read(context, allocation.span()), expected)
            part = _read(context, _subspan(allocation, offset, size))
            _equal(f"{size} bytes copied out from offset {offset}", place, part, data)


def _copy_within(place: Place) -> None:
    """Copies within the place, between allocations and within one."""
    context = get_context(place)
    for size in (1, 65, 4099):
        source, target = (memory.alloc(place, size + 16, context) for _ in range(2))
        data = _pattern(size + 16)
        _write(context, source.span(), data)
        _write(context, target.span(), np.zeros_like(data))
        context.copy_within(_subspan(target, 5, size), _subspan(source, 3, size))
        expected = np.zeros_like(data)
        expected[5 : 5 + size] = data[3 : 3 + size]
        _equal(f"copy_within of {size} bytes", place, _read(context, target.span()), expected)
    both = memory.alloc(place, 256, context)
    data = _pattern(256)
    _write(context, both.span(), data)
    context.copy_within(_subspan(both, 128, 100), _subspan(both, 11, 100))
    data[128:228] = data[11:111]
    _equal("copy_within of one allocation", place, _read(context, both.span()), data)


def _order(place: Place) -> None:
    """A queue executes in order, and the host buffer may be reused as soon as copy_in returns."""
    context = get_context(place)
    size = 1 << 16
    first, targets = memory.alloc(place, size, context), memory.alloc(place, 20 * size, context)
    host = np.empty(size, np.uint8)
    for value in range(20):
        host[:] = value
        _write(context, first.span(), host)
        host[:] = 255
        context.copy_within(_subspan(targets, value * size, size), first.span())
    expected = np.repeat(np.arange(20, dtype=np.uint8), size)
    _equal("twenty copies in a row", place, _read(context, targets.span()), expected)


def _events(place: Place) -> None:
    """An event is done after its wait; the work queued before it is complete as soon as it is done."""
    context = get_context(place)
    allocation = memory.alloc(place, 1 << 16, context)
    data = _pattern(1 << 16)
    _write(context, allocation.span(), data)
    out = np.zeros_like(data)
    context.copy_out(out.data, allocation.span())
    event = context.record()
    event.wait()
    if not event.done():
        raise ConformanceError(f"{place}: an event is not done() after its wait()")
    _equal("a copy out before the event", place, out, data)
    context.wait_for(event)
    context.wait()
    for _ in range(20):
        out[:] = 0
        context.copy_out(out.data, allocation.span())
        event = context.record()
        if event.done():  # without a wait: memory is used again as soon as an event says so
            _equal("a copy out before an event that is done", place, out.copy(), data)
        event.wait()


def _two_contexts(place: Place) -> None:
    """A second context sees the writes of the first after waiting for its event."""
    first, second = get_context(place), new_context(place)
    try:
        allocation = memory.alloc(place, 1 << 16, first)
        for seed in range(5):
            data = _pattern(1 << 16, seed)
            _write(first, allocation.span(), data)
            second.wait_for(first.record())
            _equal("a copy on another context", place, _read(second, allocation.span()), data)
    finally:
        second.close()


def _threads(place: Place) -> None:
    """Threads with their own contexts do not interfere."""
    started = Barrier(3)

    def work(seed: int) -> None:
        started.wait()  # so that each runs in a thread of its own
        for size in (100, 5000):
            allocation = memory.alloc(place, size, get_context(place))
            data = _pattern(size, seed)
            _write(get_context(place), allocation.span(), data)
            _equal("a thread's own copy", place, _read(get_context(place), allocation.span()), data)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))


def _many_allocations(place: Place) -> None:
    """Allocations do not overlap, and all memory is returned."""
    context = get_context(place)
    before = memory.used(place)
    allocations = [memory.alloc(place, 1 + 37 * i, context) for i in range(40)]
    for i, allocation in enumerate(allocations):
        _write(context, allocation.span(), _pattern(allocation.nbytes, i))
    for i, allocation in enumerate(allocations):
        _equal(f"allocation {i} of 40", place, _read(context, allocation.span()), _pattern(allocation.nbytes, i))
    for allocation in allocations:
        memory.free(allocation, place)
    if memory.used(place) != before:
        raise ConformanceError(f"{place}: {memory.used(place) - before} bytes stay in use after everything was freed")


def _array_views(place: Place) -> None:
    """Arrays of the array capability are views of the device's memory, at aligned offsets, too."""
    unit = devices.unit(place)
    if unit.array is None:
        return
    context = get_context(place)
    for dtype in unit.array_dtypes:
        data = (np.arange(24) % 2).astype(NUMPY[dtype])
        data_bytes = data.view(np.uint8)
        allocation = memory.alloc(place, data_bytes.nbytes + 64, context)
        span = _subspan(allocation, 64, data_bytes.nbytes)
        _write(context, span, data_bytes)
        array = unit.array.wrap(span, (4, 6), dtype, None)
        if tuple(array.shape) != (4, 6):
            raise ConformanceError(f"{place}: wrap gave shape {tuple(array.shape)}, expected (4, 6)")
        array[1, :] = array[0, :]
        expected = data.reshape(4, 6).copy()
        expected[1] = expected[0]
        _equal(f"a write through an array of {dtype}", place, _read(context, span), expected.ravel().view(np.uint8))


_SOURCE = """
{prologue}
{kernel} conformance({buffer} {int} *{restrict} out, const {long} items, const {long} start, const {int} step)
{{
    {each} {{ out[start + gid] = ({int})gid * step; }}
}}
"""


def _launch(place: Place) -> None:
    """The kernel language capability compiles a kernel and runs it once for each work-item."""
    unit = devices.unit(place)
    if unit.language is None:
        return
    context = get_context(place)
    keywords = {**unit.language.keywords, "int": unit.language.types["int32"], "long": unit.language.types["int64"]}
    source = _SOURCE.format(**keywords)
    kernel = context.compile(source, "conformance", ("buffer", "int64", "int64", "int32"))
    for work_items in (1, 100, 1025):
        allocation = memory.alloc(place, 4 * (work_items + 8), context)
        expected = np.full(work_items + 8, -1, np.int32)
        _write(context, allocation.span(), expected.view(np.uint8))
        if allocation.offset:
            raise ConformanceError(f"{place}: a fresh allocation starts at offset {allocation.offset}")
        context.launch(kernel, work_items, [allocation.span().handle, work_items, 4, -3])
        expected[4 : 4 + work_items] = np.arange(work_items) * -3
        _equal(f"a kernel of {work_items} items", place, _read(context, allocation.span()).view(np.int32), expected)
