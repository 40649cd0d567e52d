"""Direct convolutions, transposed convolutions and their gradients, without im2col.

For some images at a time, the planes that :mod:`conv_tiles` describes are written to the workspace; a GEMM with
register blocking reads them. One work-item computes each output, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
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
from fluidlite.plugin import IO, Call, Context, KernelOptions, Span, compute_dtype, register_kernel

from .conv_tiles import (
    FILTER_TILE,
    PACK_SIZE,
    PLANE_PADDING,
    correlate_kernel,
    filter_kernel,
    lanes_of,
    offsets_kernel,
    pack_kernel,
    planes_kernel,
)
from .source import (
    PER_ITEM,
    Buffer,
    Packing,
    Step,
    Workspace,
    build,
    convolution_kernel,
    group_size,
    span_at,
    store,
    zero_filler,
)

MAX_PLANES_BYTES = 8 << 20
"""Maximum bytes of the planes in the workspace; one image may take more."""
MIN_ROW_WINDOWS = 8
"""Minimum windows of a row: with fewer, images are folded into the rows, side by side."""
MAX_FOLDED_IMAGES = 64
"""Maximum images that are folded at a time."""
DEPTHWISE_LANES, MAX_DEPTHWISE_CHANNELS = 8, 64
"""Contiguous channels of depthwise convolutions: for multiples of the one, or above the other, loops are faster."""
_UNIT_LINE = CorrelationAxis(1, 0, 1, 0, 1, 1, 1, 0, 1)  # a missing dim: one window of one tap
_Order = tuple[int, int, int]
"""A permutation: for each dim of a plane, the outermost first, the dim of the image."""


class _Dim(NamedTuple):
    """One dim of a plane: the input's size, first element and stride, the number of phases, and elements of each."""

    size: int
    least: int
    stride: int
    phases: int
    length: int


def _dim(line: CorrelationAxis, size: int) -> _Dim:
    max_offset = max(line.offset(t) for t in (0, line.taps - 1))
    return _Dim(size, line.least, line.stride, min(line.stride, max_offset + 1), line.count + max_offset // line.stride)


class _ImageLayout(NamedTuple):
    """The layout of an image that planes are copied from or windows stored to: three dims, and strides in elements.

    ``steps``: strides of images, channels and the three dims. If rows are short, images are folded into the last dim,
    because vectors along rows would be mostly empty.
    """

    images: int
    channels: int
    sizes: tuple[int, int, int]
    steps: tuple[int, int, int, int, int]

    @staticmethod
    def of(images: int, channels: int, sizes: Sequence[int], last: bool, folded: bool) -> _ImageLayout:
        """Return the layout of an image with its channels first or last."""
        d, h, w = (1,) * (3 - len(sizes)) + tuple(sizes)
        image = d * h * w * channels
        plane = (1, h * w * channels, w * channels, channels) if last else (d * h * w, h * w, w, 1)
        if folded:
            return _ImageLayout(1, channels, (h, w, images), (0, plane[0], *plane[2:], image))
        return _ImageLayout(images, channels, (d, h, w), (image, *plane))

    def permuted(self, order: _Order) -> _ImageLayout:
        """Return the layout with its dims permuted."""
        a, b, c = order
        sizes, steps = self.sizes, self.steps[2:]
        return self._replace(
            sizes=(sizes[a], sizes[b], sizes[c]), steps=(*self.steps[:2], steps[a], steps[b], steps[c])
        )


def _three(
    lines: Sequence[CorrelationAxis], images: int, folded: bool
) -> tuple[CorrelationAxis, CorrelationAxis, CorrelationAxis]:
    """Return the lines of the three dims of a layout."""
    if folded:
        return (lines[0], lines[1], replace(_UNIT_LINE, count=images))
    d, h, w = (_UNIT_LINE,) * (3 - len(lines)) + tuple(lines)
    return d, h, w


def _parts(conv: Convolution, lines: Sequence[CorrelationAxis]) -> tuple[bool, list[tuple[int, int]]]:
    """Return whether images are folded into the rows, and the (first image, number) that are computed at a time."""
    if len(lines) == 2 and lines[1].count < MIN_ROW_WINDOWS and conv.images > 1:
        return True, [(n, min(MAX_FOLDED_IMAGES, conv.images - n)) for n in range(0, conv.images, MAX_FOLDED_IMAGES)]
    return False, [(0, conv.images)]


def _positions(counts: Sequence[int], lengths: Sequence[int]) -> int:
    """Return the elements from the first window of a plane to the last; those that are no windows are computed, too."""
    return ((counts[0] - 1) * lengths[1] + counts[1] - 1) * lengths[2] + counts[2]


def _order(counts: Sequence[int], lengths: Sequence[int]) -> _Order:
    """Return the order of dims with the fewest positions, if these are less than half of those in memory order.

    In memory order, a filter as wide as its image has one window a row, and as many positions as the image is wide.
    """

    def positions(order: _Order) -> int:
        return _positions([counts[k] for k in order], [lengths[k] for k in order])

    best = min(_DIM_ORDERS, key=positions)
    return best if 2 * positions(best) < positions(_DIM_ORDERS[0]) else _DIM_ORDERS[0]


_DIM_ORDERS: tuple[_Order, ...] = tuple((a, b, 3 - a - b) for a, b in permutations(range(3), 2))


class _Planes:
    """The planes of an image for a correlation: the kernel that copies them, and the arguments of the tap offsets.

    ``taps_of``: the lines in the order of the image's dims; all else is in the order of the plane's.
    """

    def __init__(
        self,
        context: Context,
        dtype: str,
        side: _ImageLayout,
        lines: tuple[CorrelationAxis, CorrelationAxis, CorrelationAxis],
    ) -> None:
        self.wide = compute_dtype(dtype)
        dims = list(map(_dim, lines, side.sizes))
        self.order = order = _order([line.count for line in lines], [dim.length for dim in dims])
        self.side, self.taps_of = side.permuted(order), lines
        self.lines, self.dims = [lines[k] for k in order], [dims[k] for k in order]
        depth, rows, pitch = lengths = [dim.length for dim in self.dims]
        self.rows, self.pitch = rows, pitch
        phases = [dim.phases for dim in self.dims]
        self.plane = prod(phases) * depth * rows * pitch + PLANE_PADDING
        self.positions = _positions([line.count for line in self.lines], lengths)
        self.taps = prod(line.taps for line in lines)
        self.image_items = side.channels * prod(phases) * depth * rows
        self.image_nbytes = side.channels * self.plane * ITEMSIZE[self.wide]
        self.kernel = planes_kernel(context, dtype, self.wide, self.side.steps[-1] == 1, self.dims[2].stride != 1)
        self.numbers = (
            side.channels,
            self.plane,
            depth,
            rows,
            pitch,
            *self.side.steps,
            *(getattr(dim, what) for what in ("size", "least", "stride", "phases") for dim in self.dims),
        )
        block = depth * rows * pitch
        turned = ((rows * pitch, phases[1] * phases[2] * block), (pitch, phases[2] * block), (1, block))
        places = [turned[order.index(k)] for k in range(3)]
        self.offset_numbers = (
            *(line.reach for line in lines),
            *(-min(0, line.reach * (line.taps - 1)) for line in lines),
            *(dim.stride for dim in dims),
            *(phase for _, phase in places),
            *(row for row, _ in places),
            *(line.taps for line in lines),
        )

    def make(self, context: Context, source: Span, target: Span, base: int, images: int) -> None:
        """Copy some images, from element ``base`` on, to planes."""
        items = images * self.image_items
        self.kernel(context, items, (source, target), (base, *self.numbers), group_size(items))


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel of a call, from planes."""
    return convolution_kernel(call, context, _correlations, _filter_step, flattened=True)


def _chunk(images: int, nbytes: int) -> int:
    return max(1, min(images, MAX_PLANES_BYTES // nbytes))


def _correlations(
    conv: Convolution, lines: tuple[CorrelationAxis, ...], context: Context, dtype: str, packing: Packing
) -> list[Step]:
    """Return the steps that compute the windows, or the part of an image that ``lines`` reach, for some images each."""
    folded, parts = _parts(conv, lines)
    return [_correlation(conv, lines, images, folded, dtype, context, packing) for images in parts]


def _correlation(
    conv: Convolution,
    lines: tuple[CorrelationAxis, ...],
    images: tuple[int, int],
    folded: bool,
    dtype: str,
    context: Context,
    packing: Packing,
) -> Step:
    """Return the step that computes the windows, or the part of an image that ``lines`` reach, and its workspace."""
    (skipped, count), (source, inner, m, sizes, outs) = images, conv.sides()
    reached = all(line.taps for line in lines)
    if not reached:  # the sum is zero: one tap over no channels
        lines = tuple(replace(line, taps=1) for line in lines)
    side = _ImageLayout.of(count, conv.groups * inner, sizes, conv.last, folded)
    wide, image_elements = compute_dtype(dtype), conv.groups * prod(sizes) * inner
    planes = _Planes(context, dtype, side, _three(lines, count, folded))
    target = _ImageLayout.of(count, conv.groups * m, outs, conv.last, folded).permuted(planes.order)
    rows, vectors = _tile(m, planes.positions, dtype)
    row_tiles = -(-m // rows)
    pack_items = conv.groups * row_tiles * -(-inner // PACK_SIZE)
    space = Workspace()
    offset_at = space.take(planes.taps * 8)
    packed_nbytes = conv.groups * row_tiles * rows * planes.taps * inner * ITEMSIZE[wide]
    packed_at = space.take(packed_nbytes)
    chunk = _chunk(side.images, planes.image_nbytes)
    planes_at = space.take(chunk * planes.image_nbytes)
    offsets, pack = offsets_kernel(context), pack_kernel(context, dtype, wide)
    pack_numbers = _pack_numbers(conv, planes, rows, inner, m, folded)
    start = skipped * conv.groups * m * prod(outs) + sum(
        line.first * step for line, step in zip(planes.lines, target.steps[2:], strict=True)
    )
    steps = tuple(line.step * step for line, step in zip(planes.lines, target.steps[2:], strict=True))
    counts = tuple(line.count for line in planes.lines)
    product = correlate_kernel(context, wide, dtype, rows, vectors, steps[2] == 1)
    numbers = (
        *(m, planes.positions, conv.groups, planes.taps, inner if reached else 0, planes.plane, planes.pitch),
        *(planes.rows, int(_is_contiguous(planes, counts, steps))),
        *counts,
    )
    column_tiles = -(-planes.positions // (lanes_of(wide) * vectors))

    def pack_all(context: Context, filter: Span, packed: Span) -> None:
        pack(context, pack_items, (filter, packed), pack_numbers, group_size(pack_items))

    key = "tiles", dtype, pack_items, pack_numbers
    cached_at = packing.add(packed_nbytes, key, pack_all) if reached else 0

    def step(context: Context, io: IO, scratch: Span) -> None:
        offset, packed, plane_span = (span_at(scratch, at) for at in (offset_at, packed_at, planes_at))
        image, out, cached = io.span(source), io.span(conv.out), io.packed(conv.filter)
        offsets(context, planes.taps, (offset,), planes.offset_numbers)
        if reached and cached is not None:
            packed = span_at(cached, cached_at)
        elif reached:
            pack_all(context, io.span(conv.filter), packed)
        for first in range(0, side.images, chunk):
            number = min(chunk, side.images - first)
            if reached:
                planes.make(context, image, plane_span, skipped * image_elements + first * side.steps[0], number)
            items = number * conv.groups * row_tiles * column_tiles
            base = start + first * target.steps[0]
            spans = (plane_span, packed, offset, out)
            product(context, items, spans, (*numbers, base, *target.steps[:2], *steps), PER_ITEM)

    return step, space.need


def _pack_numbers(conv: Convolution, planes: _Planes, rows: int, inner: int, m: int, folded: bool) -> tuple[int, ...]:
    """Return the arguments of the kernel that packs the filter."""
    kernel = conv.shape.kernel
    kernel = (*kernel, 1) if folded else (1,) * (3 - len(kernel)) + kernel
    taps, size = conv.taps, conv.channels * conv.taps
    return (
        rows,
        inner,
        m,
        *(line.taps for line in planes.taps_of),
        conv.filters * size,
        *((size, taps) if conv.kind == "windows" else (taps, size)),
        kernel[1] * kernel[2],
        kernel[2],
        *(line.tap for line in planes.taps_of),
        *(line.tap_step for line in planes.taps_of),
    )


def _is_contiguous(planes: _Planes, counts: Sequence[int], steps: Sequence[int]) -> bool:
    """Whether consecutive positions are stored contiguously, across rows too."""
    rows = counts[0] == counts[1] == 1 or (planes.pitch == counts[2] == steps[1])
    depth = counts[0] == 1 or (planes.rows == counts[1] and steps[0] == counts[1] * counts[2])
    return steps[2] == 1 and rows and depth


def _tile(m: int, positions: int, dtype: str) -> tuple[int, int]:
    """Return the rows of a work-item's tile, and its vectors of positions."""
    rows = 8 if m > 4 else 4 if m > 1 else 1
    vectors = -(-positions // lanes_of(compute_dtype(dtype)))
    return rows, 1 if vectors == 1 else 2 if rows == 8 else 4 if vectors > 2 else 2


def _filter_step(conv: Convolution, context: Context, dtype: str) -> Step:
    """Return the step that computes the gradient of a filter, and its workspace."""
    wide, lines = compute_dtype(dtype), conv.lines()
    size = conv.groups * conv.filters * conv.channels * conv.taps
    folded, parts = _parts(conv, lines)
    pairs = [_filter_planes(conv, lines, count, folded, dtype, context) for _, count in parts]
    rows, lanes = FILTER_TILE if conv.filters > 1 else 1, lanes_of(wide)
    chunks = [_chunk(planes.side.images, planes.image_nbytes + y_planes.image_nbytes) for planes, y_planes in pairs]
    space = Workspace()
    offset_at = space.take(conv.taps * 8)
    planes_at, windows_at = (
        space.take(max(chunk * pair[i].image_nbytes for chunk, pair in zip(chunks, pairs, strict=True))) for i in (0, 1)
    )
    total_at = space.take(size * ITEMSIZE[wide]) if wide != dtype else 0
    offsets, product = offsets_kernel(context), filter_kernel(context, wide, rows)
    buffers, text = [Buffer("total", wide), Buffer("out", dtype, True)], store(context, dtype, "out[gid]", "total[gid]")
    narrow = build(context, f"conv_narrow_{dtype}", buffers, [], text) if wide != dtype else None
    zeros = zero_filler(context, dtype)
    items = conv.groups * -(-conv.filters // rows) * -(-conv.channels * conv.taps // FILTER_TILE)
    x_elements = prod(conv.sizes) * conv.groups * conv.channels
    y_elements = prod(conv.counts) * conv.groups * conv.filters

    def step(context: Context, io: IO, scratch: Span) -> None:
        out = io.span(conv.out)
        if not conv.images:
            zeros(context, out, size)
            return
        x, y = io.span(conv.image), io.span(conv.windows)
        offset, plane_span, windows = (span_at(scratch, at) for at in (offset_at, planes_at, windows_at))
        total = out if narrow is None else span_at(scratch, total_at)
        for (skipped, _), (planes, y_planes), chunk in zip(parts, pairs, chunks, strict=True):
            offsets(context, planes.taps, (offset,), planes.offset_numbers)
            positions = -(-planes.positions // lanes) * lanes
            for first in range(0, planes.side.images, chunk):
                images = min(chunk, planes.side.images - first)
                planes.make(context, x, plane_span, skipped * x_elements + first * planes.side.steps[0], images)
                y_planes.make(context, y, windows, skipped * y_elements + first * y_planes.side.steps[0], images)
                numbers = (
                    *(conv.filters, conv.channels, conv.taps, conv.groups, images, positions),
                    *(planes.plane, y_planes.plane),
                    int(skipped + first > 0),
                )
                product(context, items, (plane_span, windows, offset, total), numbers, PER_ITEM)
        if narrow is not None:
            narrow(context, size, (total, out), (), group_size(size))

    return step, space.need


def _filter_planes(
    conv: Convolution, lines: Sequence[CorrelationAxis], count: int, folded: bool, dtype: str, context: Context
) -> tuple[_Planes, _Planes]:
    """Return the planes of the image and those of the windows, with equal positions of equal elements."""
    side = _ImageLayout.of(count, conv.groups * conv.channels, conv.sizes, conv.last, folded)
    planes = _Planes(context, dtype, side, _three(lines, count, folded))
    d, h, w = (replace(_UNIT_LINE, count=dim.length) for dim in planes.dims)
    y_layout = _ImageLayout.of(count, conv.groups * conv.filters, conv.counts, conv.last, folded).permuted(planes.order)
    return planes, _Planes(context, dtype, y_layout, (d, h, w))


def supports(call: Call) -> str | None:
    """Return why a call is left to other kernels, or None."""
    reason = fused_refusal(call)
    if reason is not None or unknown_dims(call):
        return reason
    for conv in convolutions_of(call):
        depthwise = conv.last and conv.channels == conv.filters == 1
        if depthwise and (conv.groups % DEPTHWISE_LANES == 0 or conv.groups > MAX_DEPTHWISE_CHANNELS):
            return "each channel is a group, and they lie side by side: loops go through them so"
    return None


def _registered(op: str) -> Kernel:
    """Register a kernel whose work-items keep tiles of sums: on GPUs, generated loops are 3 to 50 times as fast."""
    return register_kernel(op, "language", supports=supports, options=KernelOptions(written_for="cores"))(convolve)


conv2d, conv2d_grad = _registered("conv2d"), _registered("conv2d_grad")
conv3d, conv3d_grad = _registered("conv3d"), _registered("conv3d_grad")
depthwise_conv2d, depthwise_conv2d_grad = _registered("depthwise_conv2d"), _registered("depthwise_conv2d_grad")
conv2d_transpose, conv2d_transpose_grad = _registered("conv2d_transpose"), _registered("conv2d_transpose_grad")
conv3d_transpose, conv3d_transpose_grad = _registered("conv3d_transpose"), _registered("conv3d_transpose_grad")
depthwise_conv2d_transpose = _registered("depthwise_conv2d_transpose")
depthwise_conv2d_transpose_grad = _registered("depthwise_conv2d_transpose_grad")
