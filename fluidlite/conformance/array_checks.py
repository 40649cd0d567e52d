"""Checks of a device's array namespace and kernel language: views, adopted arrays, launches, arguments, alignment."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite import memory
from fluidlite.base.dtypes import NUMPY
from fluidlite.conformance.cases import Array
from fluidlite.conformance.device_bytes import equal, pattern, read, subspan, write
from fluidlite.conformance.tolerances import ConformanceError
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_memory import Span
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place

_VIEWS = (
    ((4, 6), None, 0, 24),
    ((6, 4), (1, 6), 0, 24),
    ((2, 3), (12, 2), 8, 17),
)
"""Dims and strides of arrays, the element of 48 at which each begins, and the number of elements that it spans."""


def array_views(place: Place) -> None:
    """Arrays of the array capability are views of the device's memory, at aligned offsets and with strides, too."""
    unit = devices.unit(place)
    if unit.array is None:
        return
    context = get_context(place)
    for dtype in unit.array_dtypes:
        data = (pattern(48) % 2).astype(NUMPY[dtype])
        itemsize = data.itemsize
        allocation = memory.alloc(place, data.nbytes + 64, context)
        span = subspan(allocation, 64, data.nbytes)
        for dims, strides, first, count in _VIEWS:
            write(context, span, data.view(np.uint8))
            part = subspan(allocation, 64 + first * itemsize, count * itemsize)
            array = unit.array.wrap(part, dims, dtype, strides)
            if tuple(array.shape) != dims:
                raise ConformanceError(f"{place}: wrap gave shape {tuple(array.shape)}, expected {dims}")
            array[0, :] = array[1, :]
            expected, steps = data.copy(), strides or (dims[1], 1)
            view = np.lib.stride_tricks.as_strided(expected[first:], dims, [step * itemsize for step in steps])
            view[0, :] = view[1, :]
            subject = f"a write through an array of {dtype}, {list(dims)}, strides {strides}"
            equal(subject, place, read(context, span), expected.view(np.uint8))


def adopted_arrays(place: Place) -> None:
    """An adopted array has the bytes of its elements in order, in memory that no other array shares."""
    unit = devices.unit(place)
    if unit.array is None or "float32" not in unit.array_dtypes:
        return
    context, xp, adopt = get_context(place), unit.array.xp, unit.array.adopt

    def numbers() -> Any:
        return xp.reshape(xp.arange(24, dtype=xp.float32), (4, 6))

    def check(subject: str, handle: object, expected: Array) -> None:
        span = Span(handle, 0, expected.nbytes)
        equal(subject, place, read(context, span), np.ascontiguousarray(expected).reshape(-1).view(np.uint8))

    with context.raw.activate():
        values = np.arange(24, dtype=np.float32).reshape(4, 6)
        owned = (xp.asarray(numbers(), copy=True), xp.asarray(xp.permute_dims(numbers(), (1, 0)), copy=True))
        for subject, array, expected in zip(("an", "a transposed"), owned, (values, values.T), strict=True):
            handle = adopt(array)
            if handle is not None:
                check(f"{subject} adopted array", handle, expected)
        base = xp.asarray(numbers(), copy=True)
        views = {
            "some rows": (base[1:, :], values[1:]),
            "other dims": (xp.reshape(base, (6, 4)), values.reshape(6, 4)),
            "other strides": (xp.permute_dims(base, (1, 0)), values.T),
            "a column": (base[:, 1], values[:, 1]),
        }
        handles = {subject: (adopt(array), expected) for subject, (array, expected) in views.items()}
        base[...] = -1.0
        for subject, (handle, expected) in handles.items():
            if handle is not None:  # of a copy
                check(f"an adopted array, a view of {subject} of another, after a write to that", handle, expected)


_SOURCE = """
{prologue}
{kernel} conformance({buffer} {int} *{restrict} out, const {long} items, const {long} start, const {int} step)
{{
    {each} {{ out[start + gid] = ({int})gid * step; }}
}}
"""


def launch(place: Place) -> None:
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
        write(context, allocation.span(), expected.view(np.uint8))
        if allocation.offset:
            raise ConformanceError(f"{place}: a fresh allocation starts at offset {allocation.offset}")
        context.launch(kernel, work_items, [allocation.span().handle, work_items, 4, -3])
        expected[4 : 4 + work_items] = np.arange(work_items) * -3
        equal(f"a kernel of {work_items} items", place, read(context, allocation.span()).view(np.int32), expected)


_ARGUMENT = """
{prologue}
{kernel} conformance_{dtype}({buffer} {type} *{restrict} out, const {long} items, const {type} value)
{{
    {each} {{ out[gid] = value; }}
}}
"""
_NUMBERS = {
    "int8": (-100,),
    "int16": (-30000,),
    "uint8": (200,),
    "int32": (5 - 2**31,),
    "uint32": (2**32 - 3,),
    "int64": (2**53 + 1,),
    "uint64": (2**64 - 5,),
    "float32": (0.1, -np.inf, np.nan),
    "float64": (0.1, -np.inf, np.nan),
}


def arguments(place: Place) -> None:
    """Numbers of each dtype reach a kernel as they are."""
    unit = devices.unit(place)
    if unit.language is None:
        return
    context, types = get_context(place), unit.language.types
    for dtype, values in _NUMBERS.items():
        if dtype not in types:
            continue
        keywords = {**unit.language.keywords, "long": types["int64"], "type": types[dtype], "dtype": dtype}
        kernel = context.compile(_ARGUMENT.format(**keywords), f"conformance_{dtype}", ("buffer", "int64", dtype))
        for value in values:
            expected = np.full(3, value, dtype)
            allocation = memory.alloc(place, expected.nbytes, context)
            context.launch(kernel, 3, [allocation.span().handle, 3, value])
            equal(f"a {dtype} argument", place, read(context, allocation.span()), expected.view(np.uint8))


_ADDRESS = """
{prologue}
{kernel} conformance_address({buffer} {long} *{restrict} out, const {long} items)
{{
    {each} {{ out[gid] = ({long})out; }}
}}
"""


def alignment(place: Place) -> None:
    """Memory begins at multiples of the alignment that the device states."""
    unit, context = devices.unit(place), get_context(place)
    stated = unit.info.alignment
    addresses: list[int] = []
    for nbytes in (8, 72, 1 << 16):
        allocation = memory.alloc(place, nbytes, context)
        address = unit.device.allocator(place.index).address(allocation.span().handle)
        if address is not None:
            addresses.append(address)
        if unit.language is not None:
            keywords = {**unit.language.keywords, "long": unit.language.types["int64"]}
            kernel = context.compile(_ADDRESS.format(**keywords), "conformance_address", ("buffer", "int64"))
            context.launch(kernel, 1, [allocation.span().handle, 1])
            addresses.append(int(read(context, subspan(allocation, 0, 8)).view(np.int64)[0]))
    for address in addresses:
        if address % stated:
            raise ConformanceError(
                f"{place}: memory begins at {address:#x}, no multiple of {stated}, the alignment of its DeviceInfo"
            )
