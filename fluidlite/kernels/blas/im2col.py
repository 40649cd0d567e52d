"""Convolutions of few windows by cblas: what windows read is unrolled (im2col), and the filter stays as it is.

A column holds what a window reads, in the order of the filter's own elements: the filter is read where it lies, and its
gradient is written there. Where there are fewer windows than filters the columns are less than the filter, which the
kernels of other libraries copy first; a filter that no program writes they copy once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import Convolution, Kernel, convolutions_of, nothing_fused, unknown_dims
from fluidlite.kernels.language import conv_registers as registers
from fluidlite.plugin import IO, Call, Context, register_kernel

from .cblas import FLOATS, Product, Routine, find, unsuitable

FEWEST_ELEMENTS = 1 << 16
"""Of a filter: a smaller one is copied in less time than NumPy takes to unroll windows tap by tap."""

Array = Any


def few_windows(one: Convolution) -> bool:
    """Whether the windows of a computation are so few that unrolling them pays."""
    windows = _count(one)
    return 0 < windows <= one.filters and one.groups * one.filters * one.channels * one.taps >= FEWEST_ELEMENTS


def _count(one: Convolution) -> int:
    return one.images * prod(one.counts)


def _supports(call: Call) -> str | None:
    reason = unsuitable(str(call.key_dtype)) or nothing_fused(call)
    if reason is not None or unknown_dims(call):
        return reason
    if not all(few_windows(one.flattened()) for one in convolutions_of(call)):
        return "more windows than filters, or small filters"
    if not call.op.type.endswith("_grad") and registers.supports(call) is None:
        return "a filter that is packed once is better"
    return None


class _Windows:
    """Where windows and their columns lie in arrays whose channels come where the call says."""

    def __init__(self, one: Convolution) -> None:
        self._one = one
        self._lines = one.lines()
        self.columns_dims = one.groups, one.images, *one.counts, one.channels, *one.shape.kernel

    def grouped(self, array: Array, dims: tuple[int, ...], channels: int) -> Array:
        """An image or windows as [groups, images, ..., channels], without a copy."""
        array = array.reshape(dims)
        if not self._one.last:
            array = np.moveaxis(array, 1, -1)
        return np.moveaxis(array.reshape(*array.shape[:-1], self._one.groups, channels), -2, 0)

    def rows(self, array: Array) -> Array:
        """Windows as [groups, filters, windows]."""
        found = self.grouped(array, self._one.windows_dims(), self._one.filters)
        return np.moveaxis(found, -1, 1)

    def image(self, array: Array) -> Array:
        return self.grouped(array, self._one.image_dims(), self._one.channels)

    def pairs(self, image: Array, columns: Array) -> Iterator[tuple[Array, Array]]:
        """For each tap the elements of the image that windows read, and where they stand in the columns."""
        sizes = self._one.sizes
        for taps in product(*map(range, self._one.shape.kernel)):
            read, placed = [], []
            for line, tap, size in zip(self._lines, taps, sizes, strict=True):
                first, end = line.inside(tap, size)
                at = line.start + line.reach * tap
                inside = range(at + line.stride * first, at + line.stride * end, line.stride)
                read.append(slice(inside.start, inside.stop, inside.step) if inside else slice(0))
                placed.append(slice(first, end))
            yield image[(slice(None), slice(None), *read)], columns[(slice(None), slice(None), *placed, ..., *taps)]

    def unrolled(self, image: Array) -> Array:
        """The columns of an image."""
        columns = np.zeros(self.columns_dims, image.dtype)
        for read, placed in self.pairs(self.image(image), columns):
            placed[...] = read
        return columns


def _step(one: Convolution, routine: Routine) -> Callable[[IO], None]:
    """Return what computes the windows, the image or the gradient of the filter."""
    windows, count = _Windows(one), _count(one)
    m, k = one.filters, one.channels * one.taps

    def multiply(gemm: Product, a: Array, b: Array, out: Array) -> None:
        for g in range(one.groups):
            gemm(a[g].ctypes.data, b[g].ctypes.data, out[g].ctypes.data, False)

    def filter_of(io: IO, slot: str) -> Array:
        return io.array(slot).reshape(one.groups, m, k)

    forward = Product(routine, m, count, k, k, False, k, True, 1.0)
    backward = Product(routine, count, k, m, count, True, k, False, 1.0)
    gradient = Product(routine, m, k, count, count, False, k, False, 1.0)

    def to_windows(io: IO) -> None:
        out = windows.rows(io.array(one.windows))
        found = np.empty(out.shape, out.dtype)
        multiply(forward, filter_of(io, one.filter), windows.unrolled(io.array(one.image)), found)
        out[...] = found

    def to_image(io: IO) -> None:
        seen = np.ascontiguousarray(windows.rows(io.array(one.windows)))
        columns, image = np.empty(windows.columns_dims, seen.dtype), windows.image(io.array(one.image))
        multiply(backward, seen, filter_of(io, one.filter), columns)
        image[...] = 0
        for read, placed in windows.pairs(image, columns):
            read += placed

    def to_filter(io: IO) -> None:
        seen = np.ascontiguousarray(windows.rows(io.array(one.windows)))
        multiply(gradient, seen, windows.unrolled(io.array(one.image)), filter_of(io, one.out))

    return {"windows": to_windows, "image": to_image, "filter": to_filter}[one.kind]


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel that runs the computations of a call one after the other."""
    routine = find(str(call.key_dtype))
    assert routine is not None  # _supports has asked
    steps = [_step(one.flattened(), routine) for one in convolutions_of(call)]

    def run(context: Context, io: IO) -> None:
        for step in steps:
            step(io)

    return run


def _registered(op: str) -> Kernel:
    return register_kernel(op, "cpu", library="im2col", dtypes=FLOATS, supports=_supports)(convolve)


conv2d, conv2d_grad = _registered("conv2d"), _registered("conv2d_grad")
conv3d, conv3d_grad = _registered("conv3d"), _registered("conv3d_grad")
conv2d_transpose, conv2d_transpose_grad = _registered("conv2d_transpose"), _registered("conv2d_transpose_grad")
conv3d_transpose, conv3d_transpose_grad = _registered("conv3d_transpose"), _registered("conv3d_transpose_grad")
