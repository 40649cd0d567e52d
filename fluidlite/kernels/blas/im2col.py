"""Convolutions by cblas on unrolled windows (im2col), with the filter as it lies: few windows, or large filters.

A column holds what a window reads, in the order of the filter's own elements: the filter is read where it lies, and its
gradient is written there. Where there are fewer windows than filters the columns are less than the filter, which the
kernels of other libraries copy first; a filter that no program writes they copy once. Gradients of large filters of few
channels, as of words' embeddings, are unrolled some images at a time.
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

from fluidlite.kernel_support import Convolution, Kernel, convolutions_of, nothing_fused, unknown_dims
from fluidlite.kernels.language import conv_registers as registers
from fluidlite.plugin import IO, Call, Context, register_kernel

from . import conv
from .cblas import FLOATS, Product, Routine, find, unsuitable

FEWEST_ELEMENTS = 1 << 16
"""Of a filter: a smaller one is copied in less time than NumPy takes to unroll windows tap by tap."""
UNROLLED = 4 << 20
"""Bytes of the columns of images that are unrolled at a time; one image may take more."""
MOST_OF_IMAGE = 32 << 20
"""Bytes that the columns of one image may take, as float64, for the gradient of a large filter."""
FEWEST_TAPS = 128
"""From which on the gradient of an image of few channels goes through columns: others go through all taps of each place
of an image, though few of them have windows."""
FEWEST_FILTERS = 16
"""Of a group."""
RUN = 7
"""Windows of a row from which on columns lie tap by tap: NumPy copies whole rows then, else all channels of a tap."""

Array = Any


def few_windows(one: Convolution) -> bool:
    """Whether the windows of a computation are so few that unrolling them pays, whoever else computes it."""
    windows = one.images * prod(one.counts)
    return 0 < windows <= one.filters and one.groups * one.filters * one.channels * one.taps >= FEWEST_ELEMENTS


def many_taps(one: Convolution) -> bool:
    """Whether filters are large, and channels so few that no other product computes their gradients."""
    nbytes = one.groups * one.channels * one.taps * prod(one.counts) * 8
    few = one.channels < conv.FEWEST and one.taps >= FEWEST_TAPS and one.filters >= FEWEST_FILTERS
    return few and one.images > 0 and 0 < nbytes <= MOST_OF_IMAGE


def _supports(call: Call) -> str | None:
    reason = unsuitable(str(call.key_dtype)) or nothing_fused(call)
    if reason is not None or unknown_dims(call):
        return reason
    every = [one.flattened() for one in convolutions_of(call)]
    gradient, others = call.op.type.endswith("_grad"), registers.supports(call) is None
    if all(map(few_windows, every)):
        return "a filter that is packed once is better" if others and not gradient else None
    if gradient and not others and all(map(many_taps, every)):
        return None
    return "neither few windows nor gradients of large filters of few channels"


class _Windows:
    """Where windows and their columns lie in arrays whose channels come where the call says."""

    def __init__(self, one: Convolution) -> None:
        self._one = one
        self._lines = one.lines()
        self.by_taps = one.counts[-1] >= RUN

    def _grouped(self, array: Array, dims: tuple[int, ...], channels: int) -> Array:
        """An image or windows as [groups, images, ..., channels], without a copy."""
        array = array.reshape(dims)
        if not self._one.last:
            array = np.moveaxis(array, 1, -1)
        return np.moveaxis(array.reshape(*array.shape[:-1], self._one.groups, channels), -2, 0)

    def windows(self, array: Array) -> Array:
        """Windows as [groups, filters, images, ...]."""
        return np.moveaxis(self._grouped(array, self._one.windows_dims(), self._one.filters), -1, 1)

    def image(self, array: Array) -> Array:
        return self._grouped(array, self._one.image_dims(), self._one.channels)

    def columns(self, images: int, dtype: Any, fill: Callable[..., Array]) -> tuple[Array, Array]:
        """The columns of some images: as they lie, and as [groups, images, ..., channels, ...]."""
        windows, elements = (images, *self._one.counts), (self._one.channels, *self._one.shape.kernel)
        if not self.by_taps:
            made = fill((self._one.groups, *windows, *elements), dtype)
            return made, made
        made, count = fill((self._one.groups, *elements, *windows), dtype), len(elements)
        return made, made.transpose(0, *range(1 + count, made.ndim), *range(1, 1 + count))

    def pairs(self, image: Array, columns: Array) -> Iterator[tuple[Array, Array]]:
        """For each tap the elements of the image that windows read, and where they stand in the columns.

        All taps at once along a dim with one window: its elements are neighbours there as here.
        """
        ones = [2 + k for k, line in enumerate(self._lines) if line.count == 1]
        loops = [range(1 if line.count == 1 else line.taps) for line in self._lines]
        for taps in product(*loops):
            read, placed, chosen = list[slice](), list[Any](), list[Any]()
            for line, tap, size in zip(self._lines, taps, self._one.sizes, strict=True):
                single = line.count == 1
                if single:  # its taps are what windows are elsewhere
                    line = replace(line, count=line.taps, stride=line.reach)
                first, end = line.inside(tap, size)
                at = line.start + line.reach * tap
                inside = range(at + line.stride * first, at + line.stride * end, line.stride)
                read.append(slice(inside.start, inside.stop, inside.step) if inside else slice(0))
                placed.append(0 if single else slice(first, end))
                chosen.append(slice(first, end) if single else tap)
            there = np.moveaxis(image[(slice(None), slice(None), *read)], ones, range(-len(ones), 0))
            yield there, columns[(slice(None), slice(None), *placed, slice(None), *chosen)]

    def unrolled(self, image: Array) -> Array:
        """The columns of images [groups, images, ..., channels]."""
        made, columns = self.columns(image.shape[1], image.dtype, np.zeros)
        for read, placed in self.pairs(image, columns):
            placed[...] = read
        return made

    def fold(self, made: Callable[[Array], None], image: Array) -> None:
        """Send columns back to the images where windows read them; ``made`` writes them as they lie."""
        lying, columns = self.columns(image.shape[1], image.dtype, np.empty)
        made(lying)
        image[...] = 0
        for read, placed in self.pairs(image, columns):
            read += placed


class _Products:
    """The products of a computation for some images."""

    def __init__(self, one: Convolution, routine: Routine, by_taps: bool, images: int) -> None:
        m, k, count = one.filters, one.channels * one.taps, images * prod(one.counts)
        self._groups, self._by_taps = one.groups, by_taps
        lying = count if by_taps else k
        self._forward = Product(routine, m, count, k, k, False, lying, not by_taps, 1.0)
        self._gradient = Product(routine, m, k, count, count, False, lying, by_taps, 1.0)
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


def _step(one: Convolution, routine: Routine) -> Callable[[IO], None]:
    """Return what computes the windows, the image or the gradient of the filter."""
    windows = _Windows(one)
    nbytes = one.groups * one.channels * one.taps * prod(one.counts) * ctypes.sizeof(routine.number)
    most = min(one.images, max(1, UNROLLED // nbytes))
    parts = [(first, min(one.images, first + most)) for first in range(0, one.images, most)]
    products = {n: _Products(one, routine, windows.by_taps, n) for n in {end - first for first, end in parts}}

    def run(io: IO) -> None:
        image, out = windows.image(io.array(one.image)), windows.windows(io.array(one.windows))
        filter = io.array(one.filter).reshape(one.groups, one.filters, -1)
        for first, end in parts:
            of, some, there = products[end - first], image[:, first:end], out[:, :, first:end]
            if one.kind == "windows":
                found = np.empty(there.shape, there.dtype)
                of.forward(filter, windows.unrolled(some), found)
                there[...] = found
                continue
            seen = np.ascontiguousarray(there)
            if one.kind == "filter":
                of.gradient(seen, windows.unrolled(some), filter, first > 0)
            else:
                windows.fold(partial(of.backward, filter, seen), some)

    return run


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
