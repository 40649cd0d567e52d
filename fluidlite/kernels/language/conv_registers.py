"""Convolutions, transposed convolutions and their gradients with sums in vector registers, see :mod:`conv_vectors`.

They need rows of some windows and enough filters to fill vectors; :mod:`conv` computes all other calls. One work-item
computes each output, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from fluidlite.kernel_support import (
    ITEMSIZE,
    Convolution,
    CorrelationAxis,
    Kernel,
    convolutions_of,
    fused_refusal,
    unknown_dims,
)
from fluidlite.plugin import IO, Call, Context, KernelOptions, Span, register_kernel

from .conv_vectors import (
    PACK_SIZE,
    Tile,
    filter_kernel,
    pack_kernel,
    planes_kernel,
    tile_of,
    unpack_kernel,
    windows_kernel,
)
from .source import PER_ITEM, Packing, Step, Workspace, convolution_kernel, group_size, span_at

MIN_ROW_WINDOWS, MIN_GROUP_FILTERS = 4, 8
"""Minimum windows of a row and filters of a group: with fewer, registers would be mostly empty."""
MAX_IMAGES_BYTES = 1 << 20
"""Maximum bytes of repacked images in the workspace; one image may take more."""
MAX_PACKED_BYTES = 1 << 20
"""Bytes of filters that are packed and read at a time, so that they stay in the cache; one tile may take more."""
MIN_ITEMS = 96
"""Minimum work-items of a launch, for an even share of the threads: images with few rows get more filters at a time."""
MAX_RESIDENT_BYTES = 640 << 10
"""Maximum bytes of packed filters that stay in the cache while an image is read."""
MAX_WINDOWS_BYTES = 256 << 10
"""Bytes of windows that a filter's gradient reads at a time, so that they stay in the cache for all work-items."""


class Dim(NamedTuple):
    """One dim of a correlation whose taps ascend in memory.

    Output ``first + step * o`` is the sum over u of the input at ``least + stride * o + reach * u`` times the filter at
    ``tap + tap_step * u``.
    """

    outs: int
    first: int
    step: int
    least: int
    stride: int
    reach: int
    taps: int
    tap: int
    tap_step: int
    size: int

    @property
    def extent(self) -> int:
        """The number of inputs from the first to the last that windows read."""
        return (self.outs - 1) * self.stride + self.reach * (self.taps - 1) + 1

    @property
    def read_range(self) -> tuple[int, int]:
        """The inputs that windows read, without padding, as [first, end)."""
        first = max(0, self.least)
        return first, max(first, min(self.size, self.least + self.extent))

    @property
    def is_inside(self) -> bool:
        """Whether windows read no padding."""
        return self.least >= 0 and self.least + self.extent <= self.size

    @property
    def is_identity(self) -> bool:
        """Whether each output reads the one input at its own index."""
        return self.taps == self.stride == self.step == 1 and self.first == self.least == 0 and self.outs == self.size


def _dim(line: CorrelationAxis, size: int) -> Dim:
    is_reversed = line.reach < 0
    tap = line.tap + line.tap_step * (line.taps - 1) if is_reversed else line.tap
    tap_step = -line.tap_step if is_reversed else line.tap_step
    return Dim(
        line.count, line.first, line.step, line.least, line.stride, abs(line.reach), line.taps, tap, tap_step, size
    )


def dims(lines: Sequence[CorrelationAxis], sizes: Sequence[int]) -> tuple[Dim, Dim]:
    """Return the dims of a correlation; if every window is one element, the image is treated as one row."""
    h, w = map(_dim, lines, sizes)
    if h.is_identity and w.is_identity:
        size = h.size * w.size
        return h._replace(outs=1, size=1), w._replace(outs=size, size=size)
    return h, w


class _Image:
    """An image with its channels last, read in place or from a copy in the workspace."""

    def __init__(
        self,
        context: Context,
        dtype: str,
        conv: Convolution,
        slot: str,
        channels: int,
        dims: tuple[Dim, Dim],
        space: Workspace,
        slack: int = 0,
    ) -> None:
        h, w = dims
        self.slot, self.images, self.channels = slot, conv.images, channels
        self.in_place = conv.last and w.is_inside and not slack
        plane = h.size * w.size
        self.image_elements = plane * channels
        if self.in_place:
            self.rows, self.least, self.columns, self.first = h.size, h.least, w.size, w.least * channels
            self.chunk = conv.images
            return
        low, high = h.read_range
        self.rows, self.least, self.columns, self.first = high - low, h.least - low, w.extent, 0
        nbytes = self.rows * self.columns * channels * ITEMSIZE[dtype]
        self.chunk = max(1, min(conv.images, MAX_IMAGES_BYTES // max(1, nbytes)))
        self._at = space.take(self.chunk * nbytes + slack * ITEMSIZE[dtype])
        self._kernel = planes_kernel(context, dtype, conv.last)
        steps = (1, w.size * channels, channels) if conv.last else (plane, w.size, 1)
        self._numbers = (self.rows, self.columns, channels, self.image_elements, *steps, low, w.size, w.least)

    def channels_last(self, context: Context, io: IO, scratch: Span, first: int, number: int) -> tuple[Span, int]:
        """Return a span with some images, repacked unless read in place, and the index of their first element in it."""
        if self.in_place:
            return io.span(self.slot), self.first + first * self.image_elements
        repacked = span_at(scratch, self._at)
        items = number * self.rows
        self._kernel(
            context,
            items,
            (io.span(self.slot), repacked),
            (first * self.image_elements, *self._numbers),
            group_size(items),
        )
        return repacked, 0


def _has_contiguous_taps(conv: Convolution, w: Dim) -> bool:
    """Whether the elements that the taps of a row read are contiguous in the image."""
    return conv.groups == 1 and (w.reach == 1 or w.taps == 1)


def windows_step(
    conv: Convolution, lines: Sequence[CorrelationAxis], context: Context, dtype: str, packing: Packing
) -> list[Step]:
    """Return the step that computes the windows, or the part of an image that ``lines`` reach, and its workspace."""
    source, inner, m, sizes, outs = conv.sides()
    reached = all(line.taps for line in lines)
    if not reached:  # the sum over no taps is zero
        lines = tuple(CorrelationAxis(line.count, line.first, line.step, 0, 1, 1, 1, 0, 1) for line in lines)
    h, w = dims(lines, sizes)
    space = Workspace()
    tile = tile_of(context, dtype, w.outs, m)
    channels, filters = conv.groups * inner, conv.groups * m
    tiles, taps = conv.groups * -(-m // tile.width), h.taps * w.taps
    tile_nbytes = tile.width * taps * inner * ITEMSIZE[dtype]
    items = h.outs * -(-w.outs // tile.rows)
    max_tiles = max(1, min(tiles, max(MAX_PACKED_BYTES // tile_nbytes, -(-MIN_ITEMS // (conv.images * items)))))
    packed_at = space.take(max_tiles * tile_nbytes)
    image = _Image(context, dtype, conv, source, channels, (h, w), space)
    pack, product = pack_kernel(context, dtype, tile), windows_kernel(context, dtype, tile, conv.last)
    parts = -(-inner // PACK_SIZE)
    tap_size, filter_size = conv.taps, conv.channels * conv.taps
    pack_steps = (filter_size, tap_size) if conv.kind == "windows" else (tap_size, filter_size)
    pack_numbers = (
        *(inner, m, conv.filters * filter_size),
        *pack_steps,
        *(conv.shape.kernel[1], h.taps, w.taps, h.tap, w.tap, h.tap_step, w.tap_step),
    )
    plane = prod(outs)
    c_step, h_step, w_step = (1, outs[1] * filters, filters) if conv.last else (plane, outs[1], 1)
    base = h.first * h_step + w.first * w_step
    contiguous = _has_contiguous_taps(conv, w)
    numbers = (
        *(image.rows, image.least, image.columns, h.outs, w.outs, h.stride, w.stride, h.reach, w.reach),
        h.taps if reached else 0,
        *((1, w.taps * inner) if contiguous else (w.taps, inner)),
    )
    steps = (plane * filters, c_step, h.step * h_step, w.step * w_step)

    def pack_tiles(context: Context, filter: Span, packed: Span, tile0: int, count: int) -> None:
        pack(context, count * parts, (filter, packed), (tile0, *pack_numbers), PER_ITEM)

    def pack_all(context: Context, filter: Span, packed: Span) -> None:
        pack_tiles(context, filter, packed, 0, tiles)

    key = "registers", dtype, tile, tiles, pack_numbers
    cached_at = packing.add(tiles * tile_nbytes, key, pack_all) if reached else 0

    def step(context: Context, io: IO, scratch: Span) -> None:
        out, cached = io.span(conv.out), io.packed(conv.filter)
        packed, chunk = (
            (span_at(scratch, packed_at), max_tiles) if cached is None else (span_at(cached, cached_at), tiles)
        )
        resident = int(chunk * tile_nbytes <= MAX_RESIDENT_BYTES)
        for first in range(0, conv.images, image.chunk):
            number = min(image.chunk, conv.images - first)
            span, at = image.channels_last(context, io, scratch, first, number) if reached else (packed, 0)
            args = (number, channels, inner, m, at, *numbers, base + first * plane * filters, *steps)
            for tile0 in range(0, tiles, chunk):
                count = min(chunk, tiles - tile0)
                if reached and cached is None and (chunk < tiles or not first):
                    pack_tiles(context, io.span(conv.filter), packed, tile0, count)
                product(context, count * number * items, (span, packed, out), (resident, count, tile0, *args), PER_ITEM)

    return [(step, space.need)]


def filter_step(conv: Convolution, context: Context, dtype: str) -> Step:
    """Return the step that computes the gradient of a filter, and its workspace."""
    h, w = dims(conv.lines(), conv.sizes)
    space, itemsize = Workspace(), ITEMSIZE[dtype]
    contiguous = _has_contiguous_taps(conv, w)
    w_outer, run = (1, w.taps * conv.channels) if contiguous else (w.taps, conv.channels)
    tile: Tile = tile_of(context, dtype, run, conv.filters)
    tiles, taps = conv.groups * -(-conv.filters // tile.width), h.taps * w.taps
    channels, filters = conv.groups * conv.channels, conv.groups * conv.filters
    image = _Image(context, dtype, conv, conv.image, channels, (h, w), space)
    unit_lines = (CorrelationAxis(h.outs, 0, 1, 0, 1, 1, 1, 0, 1), CorrelationAxis(w.outs, 0, 1, 0, 1, 1, 1, 0, 1))
    slack = tile.width if conv.filters % tile.width else 0
    windows = _Image(context, dtype, conv, conv.windows, filters, dims(unit_lines, (h.outs, w.outs)), space, slack)
    chunk = min(image.chunk, windows.chunk)
    total_at = space.take(tiles * taps * conv.channels * tile.width * itemsize)
    product, unpack = filter_kernel(context, dtype, tile), unpack_kernel(context, dtype)
    items, unpack_items = tiles * h.taps * w_outer * -(-run // tile.rows), filters * conv.channels
    rows = max(1, MAX_WINDOWS_BYTES // (w.outs * filters * itemsize))
    head = (conv.groups, channels, conv.channels, conv.filters)
    tail = (
        *(image.rows, image.least, image.columns, h.outs, w.outs, h.stride, w.stride, h.reach, w.reach, h.taps),
        *(w_outer, run),
    )

    def step(context: Context, io: IO, scratch: Span) -> None:
        total = span_at(scratch, total_at)
        for first in range(0, conv.images, chunk):
            number = min(chunk, conv.images - first)
            x, at = image.channels_last(context, io, scratch, first, number)
            y, skipped = windows.channels_last(context, io, scratch, first, number)
            y = span_at(y, skipped * itemsize)
            for r in range(0, number * h.outs, rows):
                args = (*head, at, *tail, r, min(number * h.outs, r + rows), int(first + r > 0))
                product(context, items, (x, y, total), args, PER_ITEM)
        unpack(
            context,
            unpack_items,
            (total, io.span(conv.out)),
            (conv.channels, conv.filters, tile.width, taps),
            group_size(unpack_items),
        )

    return step, space.need


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel of a call, with sums in registers."""
    return convolution_kernel(call, context, windows_step, filter_step)


def supports(call: Call) -> str | None:
    """Return why a call is left to other kernels, or None."""
    reason = fused_refusal(call)
    if reason is not None or unknown_dims(call):
        return reason
    for conv in convolutions_of(call):
        if 0 in (conv.images, *conv.sizes, *conv.counts):
            return "an image without elements"
        counts = [line[-1].count for line in conv.correlations()] if conv.kind != "filter" else [conv.counts[-1]]
        filters = conv.channels if conv.kind == "image" else conv.filters
        if min(counts) < MIN_ROW_WINDOWS:
            return f"a row has {min(counts)} windows; {MIN_ROW_WINDOWS} fill registers"
        if filters < MIN_GROUP_FILTERS:
            return f"a group has {filters} filters; {MIN_GROUP_FILTERS} fill registers"
    return None


DTYPES = ("float32", "float64")
FORWARD_LAYOUTS = dict.fromkeys(("Input", "Output"), "NHWC")
GRADIENT_LAYOUTS = dict.fromkeys(("Input", "Output@GRAD", "Input@GRAD"), "NHWC")


def _registered(op: str) -> Kernel:
    prefers = GRADIENT_LAYOUTS if op.endswith("_grad") else FORWARD_LAYOUTS
    return register_kernel(
        op,
        "cpu",
        "language",
        library="registers",
        dtypes=DTYPES,
        options=KernelOptions(prefers=prefers, written_for="registers"),
        supports=supports,
    )(convolve)


conv2d, conv2d_grad = _registered("conv2d"), _registered("conv2d_grad")
conv2d_transpose, conv2d_transpose_grad = _registered("conv2d_transpose"), _registered("conv2d_transpose_grad")
