"""Convolutions, transposed convolutions and their gradients with sums in vector registers, see :mod:`conv_vectors`.

They take images with rows of some windows and enough filters to fill vectors; :mod:`conv` takes all others. Every
output belongs to one item, which sums in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from fluidlite.kernel_support import ITEMSIZE, Convolution, Kernel, Line, convolutions_of, nothing_fused, unknown_dims
from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, Span, register_kernel

from .conv_vectors import SIDE, Tile, filter_kernel, pack_kernel, planes_kernel, tile_of, unpack_kernel, windows_kernel
from .source import HEAVY, Packing, Step, Workspace, group_size, in_turn, part

FEWEST_WINDOWS, FEWEST_FILTERS = 4, 8
"""Windows of a row, and filters of a group, below which registers would be mostly empty."""
PLANES = 1 << 20
"""Bytes of images laid out at a time; one image may take more."""
PACKED = 1 << 20
"""Bytes of packed filters that are made and read at a time: they stay in the cache. One tile may take more."""
ENOUGH = 96
"""Items from which threads share a product evenly: for images with few rows more filters are packed at a time."""
RESIDENT = 640 << 10
"""Bytes of packed filters that may stay in the cache while an image goes by."""
NEAR = 256 << 10
"""Bytes of windows that a filter's gradient goes through at a time: they stay in the cache for all of its items."""

Correlate = Callable[[Convolution, Sequence[Line], Context, str, Packing], tuple[Step, int]]
"""Returns the step that computes a correlation, and the bytes of its workspace."""


class Dim(NamedTuple):
    """One dim of a correlation whose taps go forward in memory.

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
        """From the first to the last input that is read."""
        return (self.outs - 1) * self.stride + self.reach * (self.taps - 1) + 1

    @property
    def read(self) -> tuple[int, int]:
        """The inputs that are read and are there, as [first, end)."""
        first = max(0, self.least)
        return first, max(first, min(self.size, self.least + self.extent))

    @property
    def inside(self) -> bool:
        """Whether all of that is there."""
        return self.least >= 0 and self.least + self.extent <= self.size

    @property
    def whole(self) -> bool:
        """Whether outputs are inputs, one by one."""
        return self.taps == self.stride == self.step == 1 and self.first == self.least == 0 and self.outs == self.size


def _dim(line: Line, size: int) -> Dim:
    back = line.reach < 0
    tap = line.tap + line.tap_step * (line.taps - 1) if back else line.tap
    tap_step = -line.tap_step if back else line.tap_step
    return Dim(
        line.count, line.first, line.step, line.least, line.stride, abs(line.reach), line.taps, tap, tap_step, size
    )


def dims(lines: Sequence[Line], sizes: Sequence[int]) -> tuple[Dim, Dim]:
    """Return the dims of a correlation; where windows are single elements, the image is one row."""
    h, w = map(_dim, lines, sizes)
    if h.whole and w.whole:
        size = h.size * w.size
        return h._replace(outs=1, size=1), w._replace(outs=size, size=size)
    return h, w


class _Image:
    """An image with its channels last, read where it lies or from the workspace."""

    def __init__(
        self,
        context: Context,
        dtype: str,
        one: Convolution,
        slot: str,
        channels: int,
        dims: tuple[Dim, Dim],
        space: Workspace,
        slack: int = 0,
    ) -> None:
        h, w = dims
        self.slot, self.images, self.channels = slot, one.images, channels
        self.in_place = one.last and w.inside and not slack
        plane = h.size * w.size
        self.whole = plane * channels
        if self.in_place:
            self.rows, self.least, self.columns, self.first = h.size, h.least, w.size, w.least * channels
            self.chunk = one.images
            return
        low, high = h.read
        self.rows, self.least, self.columns, self.first = high - low, h.least - low, w.extent, 0
        nbytes = self.rows * self.columns * channels * ITEMSIZE[dtype]
        self.chunk = max(1, min(one.images, PLANES // max(1, nbytes)))
        self._at = space.take(self.chunk * nbytes + slack * ITEMSIZE[dtype])
        self._kernel = planes_kernel(context, dtype, one.last)
        steps = (1, w.size * channels, channels) if one.last else (plane, w.size, 1)
        self._numbers = (self.rows, self.columns, channels, self.whole, *steps, low, w.size, w.least)

    def take(self, context: Context, io: IO, scratch: Span, first: int, number: int) -> tuple[Span, int]:
        """Return some images, laid out if they must be, and the first element in it of the first of them."""
        if self.in_place:
            return io.span(self.slot), self.first + first * self.whole
        made = part(scratch, self._at)
        items = number * self.rows
        self._kernel(
            context, items, (io.span(self.slot), made), (first * self.whole, *self._numbers), group_size(items)
        )
        return made, 0


def _joined(one: Convolution, w: Dim) -> bool:
    """Whether the taps of a row lie side by side in the image."""
    return one.groups == 1 and (w.reach == 1 or w.taps == 1)


def windows_step(
    one: Convolution, lines: Sequence[Line], context: Context, dtype: str, packing: Packing
) -> tuple[Step, int]:
    """Return the step that computes the windows, or the part of an image that ``lines`` reach, and its workspace."""
    forward = one.kind == "windows"
    source, inner, m = (one.image, one.channels, one.filters) if forward else (one.windows, one.filters, one.channels)
    sizes, outs = (one.sizes, one.counts) if forward else (one.counts, one.sizes)
    reached = all(line.taps for line in lines)
    if not reached:  # the sum over no taps is zero
        lines = tuple(Line(line.count, line.first, line.step, 0, 1, 1, 1, 0, 1) for line in lines)
    h, w = dims(lines, sizes)
    space = Workspace()
    tile = tile_of(context, dtype, w.outs, m)
    channels, filters = one.groups * inner, one.groups * m
    tiles, taps = one.groups * -(-m // tile.width), h.taps * w.taps
    tile_nbytes = tile.width * taps * inner * ITEMSIZE[dtype]
    each = h.outs * -(-w.outs // tile.rows)
    together = max(1, min(tiles, max(PACKED // tile_nbytes, -(-ENOUGH // (one.images * each)))))
    packed_at = space.take(together * tile_nbytes)
    image = _Image(context, dtype, one, source, channels, (h, w), space)
    pack, product = pack_kernel(context, dtype, tile), windows_kernel(context, dtype, tile, one.last)
    parts = -(-inner // SIDE)
    tap_size, filter_size = one.taps, one.channels * one.taps
    sides = (filter_size, tap_size) if forward else (tap_size, filter_size)
    pack_numbers = (
        *(inner, m, one.filters * filter_size),
        *sides,
        *(one.shape.kernel[1], h.taps, w.taps, h.tap, w.tap, h.tap_step, w.tap_step),
    )
    plane = prod(outs)
    c_step, h_step, w_step = (1, outs[1] * filters, filters) if one.last else (plane, outs[1], 1)
    base = h.first * h_step + w.first * w_step
    joined = _joined(one, w)
    numbers = (
        *(image.rows, image.least, image.columns, h.outs, w.outs, h.stride, w.stride, h.reach, w.reach),
        h.taps if reached else 0,
        *((1, w.taps * inner) if joined else (w.taps, inner)),
    )
    steps = (plane * filters, c_step, h.step * h_step, w.step * w_step)

    def pack_tiles(context: Context, filter: Span, packed: Span, tile0: int, count: int) -> None:
        pack(context, count * parts, (filter, packed), (tile0, *pack_numbers), HEAVY)

    def pack_all(context: Context, filter: Span, packed: Span) -> None:
        pack_tiles(context, filter, packed, 0, tiles)

    key = "registers", dtype, tile, tiles, pack_numbers
    kept_at = packing.add(tiles * tile_nbytes, key, pack_all) if reached else 0

    def step(context: Context, io: IO, scratch: Span) -> None:
        out, kept = io.span(one.out), io.packed(one.filter)
        packed, most = (part(scratch, packed_at), together) if kept is None else (part(kept, kept_at), tiles)
        near = int(most * tile_nbytes <= RESIDENT)
        for first in range(0, one.images, image.chunk):
            number = min(image.chunk, one.images - first)
            span, at = image.take(context, io, scratch, first, number) if reached else (packed, 0)
            given = (number, channels, inner, m, at, *numbers, base + first * plane * filters, *steps)
            for tile0 in range(0, tiles, most):
                count = min(most, tiles - tile0)
                if reached and kept is None and (most < tiles or not first):
                    pack_tiles(context, io.span(one.filter), packed, tile0, count)
                product(context, count * number * each, (span, packed, out), (near, count, tile0, *given), HEAVY)

    return step, space.need


def filter_step(one: Convolution, context: Context, dtype: str) -> tuple[Step, int]:
    """Return the step that computes the gradient of a filter, and its workspace."""
    h, w = dims(one.lines(), one.sizes)
    space, itemsize = Workspace(), ITEMSIZE[dtype]
    joined = _joined(one, w)
    w_outer, run = (1, w.taps * one.channels) if joined else (w.taps, one.channels)
    tile: Tile = tile_of(context, dtype, run, one.filters)
    tiles, taps = one.groups * -(-one.filters // tile.width), h.taps * w.taps
    channels, filters = one.groups * one.channels, one.groups * one.filters
    image = _Image(context, dtype, one, one.image, channels, (h, w), space)
    plain = (Line(h.outs, 0, 1, 0, 1, 1, 1, 0, 1), Line(w.outs, 0, 1, 0, 1, 1, 1, 0, 1))
    ragged = tile.width if one.filters % tile.width else 0
    seen = _Image(context, dtype, one, one.windows, filters, dims(plain, (h.outs, w.outs)), space, ragged)
    chunk = min(image.chunk, seen.chunk)
    total_at = space.take(tiles * taps * one.channels * tile.width * itemsize)
    product, unpack = filter_kernel(context, dtype, tile), unpack_kernel(context, dtype)
    items, wanted = tiles * h.taps * w_outer * -(-run // tile.rows), filters * one.channels
    rows = max(1, NEAR // (w.outs * filters * itemsize))
    head = (one.groups, channels, one.channels, one.filters)
    tail = (
        *(image.rows, image.least, image.columns, h.outs, w.outs, h.stride, w.stride, h.reach, w.reach, h.taps),
        *(w_outer, run),
    )

    def step(context: Context, io: IO, scratch: Span) -> None:
        total = part(scratch, total_at)
        for first in range(0, one.images, chunk):
            number = min(chunk, one.images - first)
            x, at = image.take(context, io, scratch, first, number)
            y, skipped = seen.take(context, io, scratch, first, number)
            y = part(y, skipped * itemsize)
            for r in range(0, number * h.outs, rows):
                given = (*head, at, *tail, r, min(number * h.outs, r + rows), int(first + r > 0))
                product(context, items, (x, y, total), given, HEAVY)
        unpack(
            context,
            wanted,
            (total, io.span(one.out)),
            (one.channels, one.filters, tile.width, taps),
            group_size(wanted),
        )

    return step, space.need


def prepared(
    call: Call,
    context: Context,
    correlate: Correlate,
    gather: Callable[[Convolution, Context, str], tuple[Step, int]],
) -> Prepared:
    """Return the kernel that runs the computations of a call one after the other, in one workspace."""
    made: list[tuple[Step, int]] = []
    packing, filter = Packing(), ""
    for one in convolutions_of(call):
        dtype = call.dtype(one.out)
        if one.kind == "filter":
            made.append(gather(one, context, dtype))
        else:
            filter = one.filter
            made += [correlate(one, lines, context, dtype, packing) for lines in one.correlations()]
    return in_turn(made, filter, packing)


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel of a call whose sums stay in registers."""
    return prepared(call, context, windows_step, filter_step)


def supports(call: Call) -> str | None:
    """Return why a call is left to other kernels."""
    reason = nothing_fused(call)
    if reason is not None or unknown_dims(call):
        return reason
    for one in convolutions_of(call):
        if 0 in (one.images, *one.sizes, *one.counts):
            return "an image without elements"
        counts = [line[-1].count for line in one.correlations()] if one.kind != "filter" else [one.counts[-1]]
        filters = one.channels if one.kind == "image" else one.filters
        if min(counts) < FEWEST_WINDOWS:
            return f"a row has {min(counts)} windows; {FEWEST_WINDOWS} fill registers"
        if filters < FEWEST_FILTERS:
            return f"a group has {filters} filters; {FEWEST_FILTERS} fill registers"
    return None


WIDE = ("float32", "float64")
FORWARD = dict.fromkeys(("Input", "Output"), "NHWC")
BACKWARD = dict.fromkeys(("Input", "Output@GRAD", "Input@GRAD"), "NHWC")


def _registered(op: str) -> Kernel:
    prefers = BACKWARD if op.endswith("_grad") else FORWARD
    return register_kernel(
        op,
        "cpu",
        "language",
        library="registers",
        dtypes=WIDE,
        options=KernelOptions(prefers=prefers, written_for="registers"),
        supports=supports,
    )(convolve)


conv2d, conv2d_grad = _registered("conv2d"), _registered("conv2d_grad")
conv2d_transpose, conv2d_transpose_grad = _registered("conv2d_transpose"), _registered("conv2d_transpose_grad")
