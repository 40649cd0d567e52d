"""3 x 3 convolutions by Winograd's F(2 x 2, 3 x 3), with four ninths of the multiplications, see :mod:`winograd_texts`.

Tiles of an image are transformed; the sixteen products run as one convolution of single windows with sixteen groups
(:mod:`conv_vectors`); an inverse transform gives the windows. A filter's gradient is the inverse transform of sixteen
sums of products. Sums have a fixed order. An element that is not finite affects only the windows that read it.
Rounding errors are relative to the largest element of a 4 x 4 tile, not to those of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from fluidlite.kernel_support import ITEMSIZE, Convolution, CorrelationAxis, Kernel, convolutions_of, unknown_dims
from fluidlite.plugin import IO, Call, Context, KernelOptions, Span, register_kernel

from . import conv_registers as registers, winograd_texts as texts
from .conv_registers import FORWARD_LAYOUTS, GRADIENT_LAYOUTS, Dim, dims
from .conv_vectors import PACK_SIZE, Tile, filter_kernel, planes_kernel, tile_of, windows_kernel
from .source import PER_ITEM, Packing, Step, Workspace, convolution_kernel, group_size, span_at
from .winograd_blocks import ADDED_ELEMENTS, blocks_kernel, sums_kernel, total_kernel
from .winograd_texts import MAX_LANES, SPOTS

DTYPE = "float32"
MIN_CHANNEL_PAIRS = 512
"""Minimum channels times filters of a group: with less, the transforms cost more than the saved multiplications."""
MIN_BLOCK_BYTES, MAX_SLOTS_BYTES = 256 << 10, 8 << 20
"""Bytes of a block of transformed tiles, which stay in a core's cache, and of all blocks that are computed at once."""
MIN_SLOTS, MAX_SLOTS = 8, 32
"""Blocks that are computed at a time."""
SUMMED_BLOCKS, MAX_SUMS_BYTES = 4, 512 << 10
"""Minimum blocks whose sums a slot adds up, and maximum bytes of these sums; those of all slots are added later."""
MAX_CHUNK_BYTES = 2 << 20
"""Maximum bytes of transformed tiles in the workspace, or the bytes of the transformed filter if these are more."""


def _winograd_dims(conv: Convolution, lines: Sequence[CorrelationAxis]) -> tuple[Dim, Dim] | None:
    """Return the dims of a correlation, for a filter's gradient of the forward one; None if Winograd can't be used."""
    if min(conv.channels, conv.filters) < MAX_LANES or conv.channels * conv.filters < MIN_CHANNEL_PAIRS:
        return None
    if any(line.taps != 3 or line.stride != 1 or abs(line.reach) != 1 or line.step != 1 for line in lines):
        return None
    return dims(lines, conv.counts if conv.kind == "image" else conv.sizes)


def _strides(height: int, width: int, channels: int, last: bool) -> tuple[int, int, int, int]:
    """Return the strides of images, rows, columns and channels."""
    plane = height * width
    return (plane * channels, *((width * channels, channels, 1) if last else (width, 1, plane)))


def _tile_counts(h: Dim, w: Dim) -> tuple[int, int]:
    """Return the tiles of two by two windows in a column and in a row."""
    return -(-h.outs // 2), -(-w.outs // 2)


class _Tiles:
    """Tiles of an image, transformed in chunks whose transforms fit into the cache.

    ``tile_nbytes``: bytes of the transforms of a tile. ``max_nbytes``: bytes of the transforms of a chunk.
    """

    def __init__(
        self,
        context: Context,
        dtype: str,
        conv: Convolution,
        channels: int,
        dims: tuple[Dim, Dim],
        tile_nbytes: int,
        max_nbytes: int,
        space: Workspace,
    ) -> None:
        h, w = dims
        self.images, self.channels = conv.images, channels
        self.counts = _tile_counts(h, w)
        self.of_image = self.counts[0] * self.counts[1]
        max_tiles = max(1, max_nbytes // tile_nbytes)
        self.chunk_images = max(1, min(conv.images, max_tiles // self.of_image))
        self.max_tiles = min(self.chunk_images * self.of_image, max_tiles)
        self.plane = h.size * w.size
        self._repack = None if conv.last else planes_kernel(context, dtype, False)
        nbytes = 0 if conv.last else self.chunk_images * self.plane * channels * ITEMSIZE[dtype]
        self._repacked_at, self._rows = space.take(nbytes), h.size
        self._numbers = (h.size, w.size, channels, channels * self.plane, self.plane, w.size, 1, 0, w.size, 0)
        self.steps = (self.plane * channels, w.size * channels, channels)
        self.bounds = (h.least, w.least, h.size, w.size)

    def parts(self) -> Iterator[tuple[int, int]]:
        """Yield (first image, number) of the images that are computed at a time."""
        for first in range(0, self.images, self.chunk_images):
            yield first, min(self.chunk_images, self.images - first)

    def chunks(self, images: int) -> Iterator[tuple[int, int]]:
        """Yield (first tile, number) of the tiles that are transformed at a time."""
        tiles = images * self.of_image
        size = -(-tiles // -(-tiles // self.max_tiles))
        for first in range(0, tiles, size):
            yield first, min(size, tiles - first)

    def channels_last(self, context: Context, image: Span, scratch: Span, first: int, images: int) -> tuple[Span, int]:
        """Return a span with some images, channels last, and the index of their first element in it."""
        base = first * self.channels * self.plane
        if self._repack is None:
            return image, base
        copy, items = span_at(scratch, self._repacked_at), images * self._rows
        self._repack(context, items, (image, copy), (base, *self._numbers), group_size(items))
        return copy, 0

    def numbers(self, first: int, pitch: int, base: int) -> tuple[int, ...]:
        """Return the numbers of the kernel that transforms tiles from tile ``first`` on."""
        return (first, *self.counts, self.channels, pitch, base, *self.steps, *self.bounds)


def _step(
    conv: Convolution, lines: Sequence[CorrelationAxis], context: Context, dtype: str, packing: Packing
) -> list[Step]:
    """Return the step that computes the windows, or the gradient of an image, and its workspace."""
    dims = _winograd_dims(conv, lines)
    if dims is None:
        return registers.windows_step(conv, lines, context, dtype, packing)
    h, w = dims
    source, inner, m, *_ = conv.sides()
    channels, filters, itemsize = conv.groups * inner, conv.groups * m, ITEMSIZE[dtype]
    pitches = SPOTS * channels + MAX_LANES, SPOTS * filters + MAX_LANES  # tiles are in different cache sets
    tile = tile_of(context, dtype, prod(_tile_counts(h, w)), m)
    groups, strips = SPOTS * conv.groups, -(-m // tile.width)
    packed_nbytes, space = groups * strips * inner * tile.width * itemsize, Workspace()
    tile_nbytes, max_nbytes = sum(pitches) * itemsize, max(MAX_CHUNK_BYTES, packed_nbytes)
    blocks = _Blocks(conv.images * prod(_tile_counts(h, w)), tile.rows, tile_nbytes, packed_nbytes)
    if blocks.slots:
        max_nbytes = blocks.slots * blocks.size * tile_nbytes
    tiles = _Tiles(context, dtype, conv, channels, dims, tile_nbytes, max_nbytes, space)
    packed_at, capacity = space.take(packed_nbytes), blocks.capacity or max(tiles.max_tiles, tile.rows)
    inputs_at, sums_at = (space.take(capacity * pitch * itemsize) for pitch in pitches)
    pack = texts.filter_kernel(context, dtype, tile)
    filter_size = conv.channels * 9
    taps = (*(filter_size, 9)[:: 1 if conv.kind == "windows" else -1], h.tap, w.tap, h.tap_step, w.tap_step)
    pack_numbers = (inner, m, conv.groups * strips * inner * tile.width, conv.filters * filter_size, *taps)
    pack_items = conv.groups * strips * -(-inner // PACK_SIZE)
    plane, out_steps = h.outs * w.outs, _strides(h.outs, w.outs, filters, conv.last)

    def pack_all(context: Context, filter: Span, packed: Span) -> None:
        pack(context, pack_items, (filter, packed), pack_numbers, PER_ITEM)

    cached_at = packing.add(packed_nbytes, ("winograd", dtype, tile, pack_items, pack_numbers), pack_all)
    products = _Products(context, dtype, tile, tiles, conv.last, conv.groups, strips, inner, m, *pitches, blocks)
    convolve_part = (_by_blocks if blocks.slots else _by_steps)(products)

    def step(context: Context, io: IO, scratch: Span) -> None:
        filter, out, cached = io.span(conv.filter), io.span(conv.out), io.packed(conv.filter)
        packed = span_at(scratch, packed_at) if cached is None else span_at(cached, cached_at)
        if cached is None:
            pack_all(context, filter, packed)
        inputs, sums = span_at(scratch, inputs_at), span_at(scratch, sums_at)
        for first, images in tiles.parts():
            image, base = tiles.channels_last(context, io.span(source), scratch, first, images)
            geometry: tuple[int, ...] = (*tiles.counts, conv.groups, inner, m, base, *tiles.steps, *tiles.bounds)
            geometry += (conv.filters * filter_size, *taps, h.outs, w.outs, first * plane * filters, *out_steps)
            convolve_part(context, (image, filter, packed, inputs, sums, out), images * tiles.of_image, geometry)

    return [(step, space.need)]


class _Blocks:
    """The blocks of tiles of a convolution that has enough of them.

    ``size``: tiles of a block. ``slots``: blocks that are computed at a time, each in a part of the workspace; 0: there
    are too few blocks. ``rows``: tiles of a slot's part. ``capacity``: tiles of the workspace.
    """

    def __init__(self, tiles: int, rows: int, tile_nbytes: int, packed_nbytes: int, sums: bool = False) -> None:
        """``rows``: minimum tiles of a part. ``sums``: each slot adds up its blocks in as many bytes as are packed."""
        size = max(rows, max(MIN_BLOCK_BYTES, packed_nbytes) // tile_nbytes)
        blocks = -(-tiles // size)
        self.size = -(-tiles // blocks)
        self.rows = max(self.size, rows)
        slot_nbytes = self.rows * tile_nbytes + packed_nbytes * sums
        slots = min(blocks // SUMMED_BLOCKS, MIN_SLOTS) if sums else min(blocks, MAX_SLOTS)
        slots = min(slots, MAX_SLOTS_BYTES // slot_nbytes)
        fits = not sums or packed_nbytes <= MAX_SUMS_BYTES
        self.slots = slots if fits and slots >= MIN_SLOTS else 0
        self.capacity = self.slots * self.rows


class _Products(NamedTuple):
    """The products of transformed tiles: ``groups`` groups of ``inner`` channels by ``m`` filters in ``strips``.

    ``last``: whether windows have channels last. ``in_pitch``, ``out_pitch``: elements of a tile's transforms.
    """

    context: Context
    dtype: str
    tile: Tile
    tiles: _Tiles
    last: bool
    groups: int
    strips: int
    inner: int
    m: int
    in_pitch: int
    out_pitch: int
    blocks: _Blocks


Part = Callable[[Context, Sequence[Span], int, tuple[int, ...]], None]
"""``part(context, spans, tiles, geometry)`` convolves some images."""


def _by_blocks(p: _Products) -> Part:
    """All steps of a block of tiles in one work-item."""
    kernel, blocks = blocks_kernel(p.context, p.dtype, p.tile, p.last), p.blocks

    def convolve(context: Context, spans: Sequence[Span], count: int, geometry: tuple[int, ...]) -> None:
        slots = min(blocks.slots, -(-count // blocks.size))
        numbers = (count, blocks.size, slots, blocks.rows, p.strips, p.in_pitch, p.out_pitch, *geometry)
        kernel(context, slots, spans, numbers, PER_ITEM)

    return convolve


def _by_steps(p: _Products) -> Part:
    """Step after step for all tiles of a chunk: strips of few tiles keep threads busy, too."""
    transform, product = texts.image_kernel(p.context, p.dtype), windows_kernel(p.context, p.dtype, p.tile, True)
    finish = texts.windows_kernel(p.context, p.dtype, p.last)
    parts = SPOTS * p.groups * p.strips

    def convolve(context: Context, spans: Sequence[Span], count: int, geometry: tuple[int, ...]) -> None:
        (image, filter, packed, inputs, sums, out), base = spans, geometry[texts.GEOMETRY.index("base")]
        for tile0, n in p.tiles.chunks(count // p.tiles.of_image):
            transform(context, n, (image, inputs), p.tiles.numbers(tile0, p.in_pitch, base), group_size(n))
            rows = max(n, p.tile.rows)
            args = (0, parts, 0, 1, p.in_pitch, p.inner, p.m, 0, 1, 0, rows, 1, rows, 1, 1, 1, 1, 1, 1, p.inner)
            items = parts * -(-rows // p.tile.rows)
            product(context, items, (inputs, packed, sums), (*args, 0, 0, 1, 0, p.out_pitch), PER_ITEM)
            runs = -(-n // texts.run_of(p.last))
            finish(context, runs, (image, filter, sums, out), (tile0, n, p.out_pitch, *geometry), group_size(runs))

    return convolve


def _filter_step(conv: Convolution, context: Context, dtype: str) -> Step:
    """Return the step that computes the gradient of a filter, and its workspace."""
    dims = _winograd_dims(conv, conv.lines())
    if dims is None:
        return registers.filter_step(conv, context, dtype)
    h, w = dims
    channels, filters, itemsize = conv.groups * conv.channels, conv.groups * conv.filters, ITEMSIZE[dtype]
    tile = tile_of(context, dtype, conv.channels, conv.filters)
    groups, strips = SPOTS * conv.groups, -(-conv.filters // tile.width)
    pitches = SPOTS * channels + MAX_LANES, SPOTS * filters
    total_nbytes, space = groups * strips * conv.channels * tile.width * itemsize, Workspace()
    tile_nbytes, max_nbytes = sum(pitches) * itemsize, max(MAX_CHUNK_BYTES, total_nbytes)
    blocks = _Blocks(conv.images * prod(_tile_counts(h, w)), 1, tile_nbytes, total_nbytes, sums=True)
    if blocks.slots:
        max_nbytes = blocks.slots * blocks.size * tile_nbytes
    tiles = _Tiles(context, dtype, conv, channels, dims, tile_nbytes, max_nbytes, space)
    capacity, slots = blocks.capacity or tiles.max_tiles, max(1, blocks.slots)
    inputs_at = space.take(capacity * pitches[0] * itemsize)
    grads_at = space.take((capacity * pitches[1] + slots * tile.width) * itemsize)  # vectors read past the last filter
    total_at = space.take(slots * total_nbytes)
    finish = texts.gradient_kernel(context, dtype, tile)
    plane, y_steps = h.outs * w.outs, _strides(h.outs, w.outs, filters, conv.last)
    x_steps = _strides(h.size, w.size, channels, conv.last)
    finish_items = conv.groups * strips * -(-conv.channels // PACK_SIZE)
    shape = conv.groups, strips, conv.channels, conv.filters
    products = _Products(context, dtype, tile, tiles, conv.last, *shape, *pitches, blocks)
    sum_part = (_sums_by_blocks if blocks.slots else _sums_by_steps)(products)
    add, total_size = total_kernel(context, dtype) if blocks.slots else None, total_nbytes // itemsize

    def step(context: Context, io: IO, scratch: Span) -> None:
        x, y, out = io.span(conv.image), io.span(conv.windows), io.span(conv.out)
        inputs, grads, total = (span_at(scratch, at) for at in (inputs_at, grads_at, total_at))
        used = 1
        for first, images in tiles.parts():
            image, base = tiles.channels_last(context, x, scratch, first, images)
            geometry = first, base, first * plane * filters, *y_steps, h.outs, w.outs
            used = max(used, sum_part(context, (image, y, inputs, grads, total), images * tiles.of_image, geometry))
        if add is not None and used > 1:
            add(context, -(-total_size // ADDED_ELEMENTS), (total,), (total_size, used), PER_ITEM)
        numbers = (
            *(conv.groups, conv.channels, conv.filters, conv.images, *x_steps),
            *(*tiles.bounds, *y_steps, h.outs, w.outs),
        )
        finish(context, finish_items, (total, x, y, out), numbers, PER_ITEM)

    return step, space.need


SumPart = Callable[[Context, Sequence[Span], int, tuple[int, ...]], int]
"""``sum_part(context, spans, tiles, (first image, base, *places of windows))`` adds products for a filter's gradient;
it returns how many sums of them there are."""


def _sums_by_blocks(p: _Products) -> SumPart:
    """All steps of a block of tiles in one work-item; each slot has sums of its own."""
    kernel, blocks = sums_kernel(p.context, p.dtype, p.tile, p.last), p.blocks
    total = SPOTS * p.groups * p.strips * p.inner * p.tile.width

    def add(context: Context, spans: Sequence[Span], count: int, geometry: tuple[int, ...]) -> int:
        first, base, *places = geometry
        slots = min(blocks.slots, -(-count // blocks.size))
        sizes = count, blocks.size, slots, blocks.rows, p.strips, p.in_pitch, total, int(first > 0)
        shape = *p.tiles.counts, p.groups, p.inner, p.m, base, *p.tiles.steps, *p.tiles.bounds
        kernel(context, slots, spans, (*sizes, *shape, *places), PER_ITEM)
        return slots

    return add


def _sums_by_steps(p: _Products) -> SumPart:
    """Step after step for all tiles of a chunk: strips of few tiles keep threads busy, too."""
    transform, spread = texts.image_kernel(p.context, p.dtype), texts.spread_kernel(p.context, p.dtype, p.last)
    product = filter_kernel(p.context, p.dtype, p.tile)
    items = SPOTS * p.groups * p.strips * -(-p.inner // p.tile.rows)

    def add(context: Context, spans: Sequence[Span], count: int, geometry: tuple[int, ...]) -> int:
        (image, y, inputs, grads, total), (first, base, *places) = spans, geometry
        for tile0, n in p.tiles.chunks(count // p.tiles.of_image):
            transform(context, n, (image, inputs), p.tiles.numbers(tile0, p.in_pitch, base), group_size(n))
            runs = -(-n // texts.run_of(p.last))
            spread(context, runs, (y, grads), (tile0, n, *p.tiles.counts, p.groups * p.m, *places), group_size(runs))
            sizes = SPOTS * p.groups, p.in_pitch, p.inner, p.m, 0, 1, 0, n, 1, n, 1, 1, 1, 1, 1, 1, p.inner
            product(context, items, (inputs, grads, total), (*sizes, 0, 1, int(first + tile0 > 0)), PER_ITEM)
        return 1

    return add


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel of a call; computations to which Winograd does not apply run by :mod:`conv_registers`."""
    return convolution_kernel(call, context, _step, _filter_step)


def supports(call: Call) -> str | None:
    """Return why a call is left to other kernels, or None."""
    reason = registers.supports(call)
    if reason is not None or unknown_dims(call):
        return reason
    lines = (
        (conv, axes)
        for conv in convolutions_of(call)
        for axes in ([conv.lines()] if conv.kind == "filter" else conv.correlations())
    )
    if any(_winograd_dims(conv, axes) for conv, axes in lines):
        return None
    return "no correlation of 3 x 3 neighbours, one by one, of enough channels and filters"


def _registered(op: str) -> Kernel:
    prefers = GRADIENT_LAYOUTS if op.endswith("_grad") else FORWARD_LAYOUTS
    options = KernelOptions(prefers=prefers, written_for="registers")
    return register_kernel(
        op, "cpu", "language", library="winograd", dtypes=(DTYPE,), options=options, supports=supports
    )(convolve)


conv2d, conv2d_grad = _registered("conv2d"), _registered("conv2d_grad")
conv2d_transpose, conv2d_transpose_grad = _registered("conv2d_transpose"), _registered("conv2d_transpose_grad")
