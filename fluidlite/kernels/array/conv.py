"""Convolutions, transposed convolutions and their gradients.

A correlation unrolls the image: the elements that each filter reads stand in a column (im2col), and one matrix product
with the filter gives the windows. The columns are made for a few images, or a few rows of one, at a time. Filters
that see one channel are shifted multiplications instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

from fluidlite.plugin import (
    IO,
    ITEMSIZE,
    Call,
    Context,
    Convolution,
    Line,
    compute_dtype,
    convolutions_of,
    nothing_fused,
    register_kernel,
)

from .common import widener

COLUMNS = 4 << 20
"""Bytes of columns made at a time; one row of windows of one image may take more."""

Step = Callable[[Context, IO], None]


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel that runs the computations of a call one after the other."""
    steps = [step for one in convolutions_of(call) for step in _steps(one, call, context)]
    if len(steps) == 1:
        return steps[0]

    def run(context: Context, io: IO) -> None:
        for step in steps:
            step(context, io)

    return run


def _steps(one: Convolution, call: Call, context: Context) -> Iterator[Step]:
    if one.kind == "filter":
        yield _filter_step(one, call, context)
        return
    for lines in one.correlations():
        yield _correlation(one, lines, call, context)


class _Views:
    """Slots of a call as [images, groups, channels, spatial dims...], in the type in which one computes."""

    def __init__(self, one: Convolution, call: Call, context: Context) -> None:
        self.xp, self.one = context.xp, one
        self.widen = widener(call.dtype(one.out), context)
        self.dtype = getattr(context.xp, compute_dtype(call.dtype(one.out)))
        self.rank = len(one.sizes)

    def image(self, array: Any) -> Any:
        """The view of an image in either layout; a copy where the namespace cannot view."""
        xp, groups, rank = self.xp, self.one.groups, self.rank
        if self.one.last:
            shape = (*array.shape[:-1], groups, array.shape[-1] // groups)
            return xp.permute_dims(xp.reshape(array, shape), (0, rank + 1, rank + 2, *range(1, rank + 1)))
        return xp.reshape(array, (array.shape[0], groups, array.shape[1] // groups, *array.shape[2:]))

    def weights(self, array: Any) -> Any:
        """The filter as [groups, filters, channels, spatial dims...]."""
        one = self.one
        return self.xp.reshape(self.widen(array), (one.groups, one.filters, one.channels, *one.shape.kernel))

    def store(self, out: Any, images: slice, places: Sequence[slice], value: Any) -> None:
        """Write [groups, channels, images, spatial dims...] to the places of an image in either layout."""
        xp, rank = self.xp, self.rank
        if value.dtype != out.dtype:
            value = xp.astype(value, out.dtype)
        spatial = tuple(range(3, rank + 3))
        if self.one.last:
            value = xp.permute_dims(value, (2, *spatial, 0, 1))
            out[(images, *places, ...)] = xp.reshape(value, (*value.shape[:-2], out.shape[-1]))
        else:
            value = xp.permute_dims(value, (2, 0, 1, *spatial))
            out[(images, slice(None), *places)] = xp.reshape(value, (value.shape[0], out.shape[1], *value.shape[3:]))


def _chunks(images: int, rows: int, row_nbytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first image, end, first row, end) of parts whose columns take a bounded number of bytes."""
    whole = max(1, COLUMNS // max(row_nbytes, 1))
    if whole < rows:
        for n in range(images):
            for row in range(0, rows, whole):
                yield n, n + 1, row, min(rows, row + whole)
    else:
        count = max(1, whole // max(rows, 1))
        for n in range(0, images, count):
            yield n, min(images, n + count), 0, rows


def _taps(lines: Sequence[Line], sizes: Sequence[int], low: int, high: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yield, for each tap, its indices, the windows that it lies inside for, and what those read.

    Only windows in [low, high) of the first dim are asked for.
    """
    for tap in product(*(range(line.taps) for line in lines)):
        places, reads = [], []
        for i, (line, t, size) in enumerate(zip(lines, tap, sizes, strict=True)):
            first, end = line.inside(t, size, low, high) if i == 0 else line.inside(t, size)
            at = line.start + line.reach * t + line.stride * first
            shift = low if i == 0 else 0
            places.append(slice(first - shift, end - shift))
            reads.append(slice(at, at + line.stride * (end - first - 1) + 1 if end > first else at, line.stride))
        if all(place.stop > place.start for place in places):
            yield tap, tuple(places), tuple(reads)


def _columns(views: _Views, x: Any, lines: Sequence[Line], low: int, high: int) -> Any:
    """Return [groups, channels, taps..., images, windows...] of a part of an image [images, groups, channels, ...]."""
    xp, rank = views.xp, views.rank
    dims = (*x.shape[1:3], *(line.taps for line in lines), x.shape[0], high - low, *(line.count for line in lines[1:]))
    columns = xp.zeros(dims, dtype=views.dtype)
    order = (1, 2, 0, *range(3, rank + 3))
    for tap, places, reads in _taps(lines, x.shape[3:], low, high):
        columns[(slice(None), slice(None), *tap, slice(None), *places)] = xp.permute_dims(x[(..., *reads)], order)
    return columns


def _correlation(one: Convolution, lines: tuple[Line, ...], call: Call, context: Context) -> Step:
    """Return the step that computes the windows, or the part of an image that ``lines`` reach."""
    views, xp = _Views(one, call, context), context.xp
    source = one.image if one.kind == "windows" else one.windows
    inner, rows = (one.channels, one.filters) if one.kind == "windows" else (one.filters, one.channels)
    taps, counts = prod(line.taps for line in lines), [line.count for line in lines]
    row_nbytes = one.groups * inner * taps * prod(counts[1:]) * ITEMSIZE[compute_dtype(call.dtype(one.out))]
    if not taps:

        def clear(context: Context, io: IO) -> None:
            places = tuple(slice(line.first, None, line.step) for line in lines)
            io.array(one.out)[(slice(None), *places, ...) if one.last else (..., *places)] = 0

        return clear
    part = tuple(slice(line.tap, None, line.tap_step) for line in lines)
    make = _shifted if inner == 1 else _unrolled

    def run(context: Context, io: IO) -> None:
        x, out = views.image(io.array(source)), io.array(one.out)
        w = views.weights(io.array(one.filter))[(..., *part)]
        if one.kind == "image":
            w = xp.permute_dims(w, (0, 2, 1, *range(3, views.rank + 3)))
        for first, end, low, high in _chunks(one.images, counts[0], row_nbytes):
            value = make(views, views.widen(x[first:end, ...]), w, lines, low, high)
            value = xp.reshape(value, (one.groups, rows, end - first, high - low, *counts[1:]))
            places = [
                slice(line.first + line.step * a, line.first + line.step * (b - 1) + 1, line.step)
                for line, a, b in zip(lines, (low, *(0,) * len(counts)), (high, *counts[1:]), strict=False)
            ]
            views.store(out, slice(first, end), places, value)

    return run


def _unrolled(views: _Views, x: Any, w: Any, lines: Sequence[Line], low: int, high: int) -> Any:
    """Return [groups, rows, windows] of a part: the filter times the columns."""
    xp = views.xp
    columns = _columns(views, x, lines, low, high)
    w = xp.reshape(w, (*w.shape[:2], prod(w.shape[2:])))
    return xp.matmul(w, xp.reshape(columns, (w.shape[0], w.shape[2], prod(columns.shape[2 + len(lines) :]))))


def _shifted(views: _Views, x: Any, w: Any, lines: Sequence[Line], low: int, high: int) -> Any:
    """Return the same where a filter sees one channel: the sum over taps of the image times an element."""
    xp, rank = views.xp, views.rank
    x = xp.permute_dims(x, (1, 2, 0, *range(3, rank + 3)))  # [groups, 1, images, ...]
    dims = (*w.shape[:2], x.shape[2], high - low, *(line.count for line in lines[1:]))
    total = xp.zeros(dims, dtype=views.dtype)
    for tap, places, reads in _taps(lines, x.shape[3:], low, high):
        factor = xp.reshape(w[(slice(None), slice(None), 0, *tap)], (*w.shape[:2], *(1,) * (rank + 1)))
        total[(..., *places)] += x[(..., *reads)] * factor
    return total


def _filter_step(one: Convolution, call: Call, context: Context) -> Step:
    """Return the step that computes the gradient of a filter: windows times columns, summed over the parts."""
    views, xp, lines, rank = _Views(one, call, context), context.xp, one.lines(), len(one.sizes)
    row_nbytes = one.groups * one.channels * one.taps * prod(one.counts[1:]) * ITEMSIZE[compute_dtype(
        call.dtype(one.out)
    )]  # fmt: skip
    dims = (one.groups, one.filters, one.channels * one.taps)
    order = (1, 2, 0, *range(3, rank + 3))

    def run(context: Context, io: IO) -> None:
        x, y, out = views.image(io.array(one.image)), views.image(io.array(one.windows)), io.array(one.out)
        total = xp.zeros(dims, dtype=views.dtype)
        for first, end, low, high in _chunks(one.images, one.counts[0], row_nbytes):
            columns = _columns(views, views.widen(x[first:end, ...]), lines, low, high)
            size = prod(columns.shape[2 + rank :])
            columns = xp.reshape(columns, (one.groups, dims[2], size))
            part = y[(slice(first, end), slice(None), slice(None), slice(low, high), ...)]
            part = xp.reshape(xp.permute_dims(views.widen(part), order), (one.groups, one.filters, size))
            total += xp.matmul(part, xp.matrix_transpose(columns))
        total = xp.reshape(total, out.shape)
        out[...] = total if total.dtype == out.dtype else xp.astype(total, out.dtype)

    return run


conv2d = register_kernel("conv2d", "array", supports=nothing_fused)(convolve)
conv2d_grad = register_kernel("conv2d_grad", "array", supports=nothing_fused)(convolve)
conv3d = register_kernel("conv3d", "array", supports=nothing_fused)(convolve)
conv3d_grad = register_kernel("conv3d_grad", "array", supports=nothing_fused)(convolve)
depthwise_conv2d = register_kernel("depthwise_conv2d", "array", supports=nothing_fused)(convolve)
depthwise_conv2d_grad = register_kernel("depthwise_conv2d_grad", "array", supports=nothing_fused)(convolve)
conv2d_transpose = register_kernel("conv2d_transpose", "array", supports=nothing_fused)(convolve)
conv2d_transpose_grad = register_kernel("conv2d_transpose_grad", "array", supports=nothing_fused)(convolve)
conv3d_transpose = register_kernel("conv3d_transpose", "array", supports=nothing_fused)(convolve)
conv3d_transpose_grad = register_kernel("conv3d_transpose_grad", "array", supports=nothing_fused)(convolve)
depthwise_conv2d_transpose = register_kernel("depthwise_conv2d_transpose", "array", supports=nothing_fused)(convolve)
depthwise_conv2d_transpose_grad = register_kernel(
    "depthwise_conv2d_transpose_grad", "array", supports=nothing_fused
)(convolve)  # fmt: skip
