"""Convolutions by im2col and cblas, without a copy of the filter: for few windows, or for large filters.

A column contains the elements that a window reads, in the order of the filter's elements: the filter is read in place,
and its gradient is written in place. With fewer windows than filters the columns are smaller than the filter. Kernels
of other libraries copy the filter first, and only once if no program writes it. For gradients of large filters of few
channels, as of word embeddings, some images are unrolled at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import Convolution, Kernel, convolutions_of, fused_refusal, unknown_dims
from fluidlite.kernels.language import conv_registers as registers
from fluidlite.plugin import IO, Call, Context, register_kernel

from .cblas import FLOATS, Product, Routine, cblas_routine, unsuitable
from .conv import MIN_CHANNELS

MIN_FILTER_ELEMENTS = 1 << 16
"""Minimum elements of a filter: copying a smaller one takes less time than unrolling windows tap by tap by NumPy."""
MAX_UNROLLED_BYTES = 4 << 20
"""Maximum bytes of the columns of the images that are unrolled at a time; one image may take more."""
MAX_IMAGE_COLUMNS_BYTES = 32 << 20
"""Maximum bytes of the columns of one image, as float64, for the gradient of a large filter."""
MIN_TAPS = 128
"""Minimum taps of a filter for the gradient of an image of few channels by columns: other kernels visit all taps of
each element of the image, though few taps have windows."""
MIN_GROUP_FILTERS = 16
"""Minimum filters of a group for gradients of large filters."""
MIN_ROW_WINDOWS = 7
"""Minimum windows of a row for columns in tap-major order: NumPy then copies whole rows, else channels of a tap."""

Array = Any


def has_few_windows(conv: Convolution) -> bool:
    """Whether unrolling is faster than every other kernel: at most as many windows as filters, and a large filter."""
    windows = conv.images * prod(conv.counts)
    return 0 < windows <= conv.filters and conv.groups * conv.filters * conv.channels * conv.taps >= MIN_FILTER_ELEMENTS


def has_many_taps(conv: Convolution) -> bool:
    """Whether filters are large, and channels too few for the other kernels that compute gradients by GEMMs."""
    nbytes = conv.groups * conv.channels * conv.taps * prod(conv.counts) * 8
    few = conv.channels < MIN_CHANNELS and conv.taps >= MIN_TAPS and conv.filters >= MIN_GROUP_FILTERS
    return few and conv.images > 0 and 0 < nbytes <= MAX_IMAGE_COLUMNS_BYTES


def _supports(call: Call) -> str | None:
    reason = unsuitable(str(call.key_dtype)) or fused_refusal(call)
    if reason is not None or unknown_dims(call):
        return reason
    computations = [conv.flattened() for conv in convolutions_of(call)]
    gradient, registers_support_it = call.op.type.endswith("_grad"), registers.supports(call) is None
    if all(map(has_few_windows, computations)):
        return "a filter that is packed once is better" if registers_support_it and not gradient else None
    if gradient and not registers_support_it and all(map(has_many_taps, computations)):
        return None
    return "neither few windows nor gradients of large filters of few channels"


class _ConvolutionViews:
    """Views of images, windows and columns in both layouts; ``by_taps``: whether columns are in tap-major order."""

    def __init__(self, conv: Convolution) -> None:
        self._conv = conv
        self._lines = conv.lines()
        self.by_taps = conv.counts[-1] >= MIN_ROW_WINDOWS

    def _grouped(self, array: Array, dims: tuple[int, ...], channels: int) -> Array:
        """Return an image or windows as [groups, images, ..., channels], without a copy."""
        array = array.reshape(dims)
        if not self._conv.last:
            array = np.moveaxis(array, 1, -1)
        return np.moveaxis(array.reshape(*array.shape[:-1], self._conv.groups, channels), -2, 0)

    def windows(self, array: Array) -> Array:
        """Return windows as [groups, filters, images, ...]."""
        return np.moveaxis(self._grouped(array, self._conv.windows_dims(), self._conv.filters), -1, 1)

    def image(self, array: Array) -> Array:
        return self._grouped(array, self._conv.image_dims(), self._conv.channels)

    def columns(self, images: int, dtype: Any, fill: Callable[..., Array]) -> tuple[Array, Array]:
        """Return new columns of some images: in memory order, and as [groups, images, ..., channels, ...]."""
        windows, elements = (images, *self._conv.counts), (self._conv.channels, *self._conv.shape.kernel)
        if not self.by_taps:
            columns = fill((self._conv.groups, *windows, *elements), dtype)
            return columns, columns
        columns, count = fill((self._conv.groups, *elements, *windows), dtype), len(elements)
        return columns, columns.transpose(0, *range(1 + count, columns.ndim), *range(1, 1 + count))

    def pairs(self, image: Array, columns: Array) -> Iterator[tuple[Array, Array]]:
        """Yield for each tap the elements of the image that windows read, and their view in the columns.

        Along a dim with one window all taps are one slice: they are adjacent in the image and in the columns.
        """
        unit_axes = [2 + k for k, axis in enumerate(self._lines) if axis.count == 1]
        tap_ranges = [range(1 if axis.count == 1 else axis.taps) for axis in self._lines]
        for taps in product(*tap_ranges):
            slices, window_slices, tap_slices = list[slice](), list[Any](), list[Any]()
            for axis, tap, size in zip(self._lines, taps, self._conv.sizes, strict=True):
                single = axis.count == 1
                if single:  # its taps take the role of the windows
                    axis = replace(axis, count=axis.taps, stride=axis.reach)
                first, end = axis.inside(tap, size)
                start = axis.start + axis.reach * tap
                inside = range(start + axis.stride * first, start + axis.stride * end, axis.stride)
                slices.append(slice(inside.start, inside.stop, inside.step) if inside else slice(0))
                window_slices.append(0 if single else slice(first, end))
                tap_slices.append(slice(first, end) if single else tap)
            image_view = np.moveaxis(image[(slice(None), slice(None), *slices)], unit_axes, range(-len(unit_axes), 0))
            yield image_view, columns[(slice(None), slice(None), *window_slices, slice(None), *tap_slices)]

    def unrolled(self, image: Array) -> Array:
        """Return the columns of images [groups, images, ..., channels] in memory order."""
        columns_in_memory, columns = self.columns(image.shape[1], image.dtype, np.zeros)
        for image_view, column_view in self.pairs(image, columns):
            column_view[...] = image_view
        return columns_in_memory

    def fold(self, write_columns: Callable[[Array], None], image: Array) -> None:
        """Add columns, which ``write_columns`` writes in memory order, to the elements they were read from (col2im)."""
        columns_in_memory, columns = self.columns(image.shape[1], image.dtype, np.empty)
        write_columns(columns_in_memory)
        image[...] = 0
        for image_view, column_view in self.pairs(image, columns):
            image_view += column_view


class _Products:
    """The GEMMs of a computation for a number of images."""

    def __init__(self, conv: Convolution, routine: Routine, by_taps: bool, images: int) -> None:
        m, k, count = conv.filters, conv.channels * conv.taps, images * prod(conv.counts)
        self._groups, self._by_taps = conv.groups, by_taps
        b_columns = count if by_taps else k
        self._forward = Product(routine, m, count, k, k, False, b_columns, not by_taps, 1.0)
        self._gradient = Product(routine, m, k, count, count, False, b_columns, by_taps, 1.0)
        sizes = (k, count, m, k, True, count, False) if by_taps else (count, k, m, count, True, k, False)
        self._backward = Product(routine, *sizes, 1.0)

    def _multiply(self, gemm: Product, a: Array, b: Array, out: Array, add: bool = False) -> None:
        for g in range(self._groups):
            gemm(a[g].ctypes.data, b[g].ctypes.data, out[g].ctypes.data, add)

    def forward(self, filter: Array, columns: Array, windows: Array) -> None:
        self._multiply(self._forward, filter, columns, windows)

    def gradient(self, windows: Array, columns: Array, filter: Array, add: bool) -> None:
        self._multiply(self._gradient, windows, columns, filter, add)

    def backward(self, filter: Array, windows: Array, columns: Array) -> None:
        self._multiply(self._backward, *((filter, windows) if self._by_taps else (windows, filter)), columns)


def _step(conv: Convolution, routine: Routine) -> Callable[[IO], None]:
    """Return the function that computes the windows, the gradient of the image or that of the filter."""
    windows = _ConvolutionViews(conv)
    nbytes = conv.groups * conv.channels * conv.taps * prod(conv.counts) * ctypes.sizeof(routine.number)
    max_images = min(conv.images, max(1, MAX_UNROLLED_BYTES // nbytes))
    parts = [(first, min(conv.images, first + max_images)) for first in range(0, conv.images, max_images)]
    products = {n: _Products(conv, routine, windows.by_taps, n) for n in {end - first for first, end in parts}}

    def run(io: IO) -> None:
        image, out = windows.image(io.array(conv.image)), windows.windows(io.array(conv.windows))
        filter = io.array(conv.filter).reshape(conv.groups, conv.filters, -1)
        for first, end in parts:
            gemms, part_image, part_windows = products[end - first], image[:, first:end], out[:, :, first:end]
            if conv.kind == "windows":
                results = np.empty(part_windows.shape, part_windows.dtype)
                gemms.forward(filter, windows.unrolled(part_image), results)
                part_windows[...] = results
                continue
            contiguous_windows = np.ascontiguousarray(part_windows)
            if conv.kind == "filter":
                gemms.gradient(contiguous_windows, windows.unrolled(part_image), filter, first > 0)
            else:
                windows.fold(partial(gemms.backward, filter, contiguous_windows), part_image)

    return run


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel that runs the computations of a call one after the other."""
    routine = cblas_routine(str(call.key_dtype))
    assert routine is not None  # _supports checked it
    steps = [_step(conv.flattened(), routine) for conv in convolutions_of(call)]

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
