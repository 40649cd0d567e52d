"""Convolutions of 3 x 3 by Winograd's F(2 x 2, 3 x 3): four ninths of the products, see :mod:`winograd_texts`.

Tiles of an image are transformed, the sixteen products are those of sixteen groups of single windows in registers
(:mod:`conv_vectors`), and windows are made of these; a filter's gradient is the sixteen sums of products of two
transforms. Sums are in a fixed order. What a window reads that is not finite reaches no other. Numbers are rounded at
the size of what a tile of 4 x 4 holds, not at that of a window's own elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fluidlite.kernel_support import ITEMSIZE, Convolution, Kernel, Line, convolutions_of, unknown_dims
from fluidlite.plugin import IO, Call, Context, KernelOptions, Span, register_kernel

from . import conv_registers as registers, winograd_texts as texts
from .conv_registers import BACKWARD, FORWARD, Dim, dims
from .conv_vectors import SIDE, filter_kernel, planes_kernel, tile_of, windows_kernel
from .source import HEAVY, Packing, Step, Workspace, group_size, part
from .winograd_texts import LANES, SPOTS

DTYPE = "float32"
FEWEST_PAIRS = 512
"""Channels times filters of a group, below which transforms cost what products save."""
CHUNK = 2 << 20
"""Bytes of transforms made at a time, or as many as the transformed filter has if these are more."""


def _tiled(one: Convolution, lines: Sequence[Line]) -> tuple[Dim, Dim] | None:
    """The dims of a correlation that goes tile by tile, for a filter's gradient those that make the windows."""
    if min(one.channels, one.filters) < LANES or one.channels * one.filters < FEWEST_PAIRS:
        return None
    if any(line.taps != 3 or line.stride != 1 or abs(line.reach) != 1 or line.step != 1 for line in lines):
        return None
    return dims(lines, one.counts if one.kind == "image" else one.sizes)


class _Tiles:
    """Tiles of an image, as many at a time as the cache holds transforms of.

    ``each`` is the bytes of the transforms of a tile, ``room`` how many may take.
    """

    def __init__(
        self,
        context: Context,
        dtype: str,
        one: Convolution,
        channels: int,
        dims: tuple[Dim, Dim],
        each: int,
        room: int,
        space: Workspace,
    ) -> None:
        h, w = dims
        self.images, self.channels = one.images, channels
        self.counts = -(-h.outs // 2), -(-w.outs // 2)
        self.of_image = self.counts[0] * self.counts[1]
        most = max(1, room // each)
        self.chunk_images = max(1, min(one.images, most // self.of_image))
        self.most = min(self.chunk_images * self.of_image, most)
        self.plane = h.size * w.size
        self._lay = None if one.last else planes_kernel(context, dtype, False)
        nbytes = 0 if one.last else self.chunk_images * self.plane * channels * ITEMSIZE[dtype]
        self._laid_at, self._rows = space.take(nbytes), h.size
        self._numbers = (h.size, w.size, channels, channels * self.plane, self.plane, w.size, 1, 0, w.size, 0)
        self.steps = (self.plane * channels, w.size * channels, channels)
        self.bounds = (h.least, w.least, h.size, w.size)
        self._transform = texts.image_kernel(context, dtype)

    def parts(self) -> Iterator[tuple[int, int]]:
        """The first image and the number of images that are done at a time."""
        for first in range(0, self.images, self.chunk_images):
            yield first, min(self.chunk_images, self.images - first)

    def chunks(self, images: int) -> Iterator[tuple[int, int]]:
        """The first tile and the number of tiles that are transformed at a time."""
        whole = images * self.of_image
        size = -(-whole // -(-whole // self.most))
        for first in range(0, whole, size):
            yield first, min(size, whole - first)

    def laid(self, context: Context, image: Span, scratch: Span, first: int, images: int) -> tuple[Span, int]:
        """Some images with their channels last, and where the first begins."""
        base = first * self.channels * self.plane
        if self._lay is None:
            return image, base
        made, items = part(scratch, self._laid_at), images * self._rows
        self._lay(context, items, (image, made), (base, *self._numbers), group_size(items))
        return made, 0

    def transform(self, context: Context, image: Span, base: int, made: Span, pitch: int, first: int, n: int) -> None:
        """Transform ``n`` tiles from the ``first`` one on."""
        numbers = (first, *self.counts, self.channels, pitch, base, *self.steps, *self.bounds)
        self._transform(context, n, (image, made), numbers, group_size(n))


def _step(one: Convolution, lines: Sequence[Line], context: Context, dtype: str, packing: Packing) -> tuple[Step, int]:
    """Return the step that computes the windows, or an image, and its workspace."""
    found = _tiled(one, lines)
    if found is None:
        return registers.windows_step(one, lines, context, dtype, packing)
    h, w = found
    forward = one.kind == "windows"
    source, inner, m = (one.image, one.channels, one.filters) if forward else (one.windows, one.filters, one.channels)
    channels, filters, itemsize = one.groups * inner, one.groups * m, ITEMSIZE[dtype]
    pitches = SPOTS * channels + LANES, SPOTS * filters + LANES  # tiles lie in different sets of the cache
    tile = tile_of(context, dtype, -(-h.outs // 2) * -(-w.outs // 2), m)
    groups, ways = SPOTS * one.groups, -(-m // tile.width)
    packed_nbytes, space = groups * ways * inner * tile.width * itemsize, Workspace()
    each, room = sum(pitches) * itemsize, max(CHUNK, packed_nbytes)
    tiles = _Tiles(context, dtype, one, channels, found, each, room, space)
    packed_at, most = space.take(packed_nbytes), max(tiles.most, tile.rows)
    made_at, sums_at = (space.take(most * pitch * itemsize) for pitch in pitches)
    pack, product = texts.filter_kernel(context, dtype, tile), windows_kernel(context, dtype, tile, True)
    finish = texts.windows_kernel(context, dtype, one.last)
    far = one.channels * 9
    taps = (one.filters * far, *((far, 9) if forward else (9, far)), h.tap, w.tap, h.tap_step, w.tap_step)
    pack_numbers = (inner, m, one.groups * ways * inner * tile.width, *taps)
    pack_items = one.groups * ways * -(-inner // SIDE)
    plane = h.outs * w.outs
    out_steps = (plane * filters, *((w.outs * filters, filters, 1) if one.last else (w.outs, 1, plane)))

    def pack_all(context: Context, filter: Span, packed: Span) -> None:
        pack(context, pack_items, (filter, packed), pack_numbers, HEAVY)

    kept_at = packing.add(packed_nbytes, ("winograd", dtype, tile, pack_items, pack_numbers), pack_all)

    def step(context: Context, io: IO, scratch: Span) -> None:
        filter, out, kept = io.span(one.filter), io.span(one.out), io.packed(one.filter)
        packed = part(scratch, packed_at) if kept is None else part(kept, kept_at)
        if kept is None:
            pack_all(context, filter, packed)
        made, sums = part(scratch, made_at), part(scratch, sums_at)
        for first, images in tiles.parts():
            image, base = tiles.laid(context, io.span(source), scratch, first, images)
            for tile0, n in tiles.chunks(images):
                tiles.transform(context, image, base, made, pitches[0], tile0, n)
                rows = max(n, tile.rows)
                given = (0, groups * ways, 0, 1, pitches[0], inner, m, 0, 1, 0, rows, 1, rows, 1, 1, 1, 1, 1, 1, inner)
                items = groups * ways * -(-rows // tile.rows)
                product(context, items, (made, packed, sums), (*given, 0, 0, 1, 0, pitches[1]), HEAVY)
                numbers = (tile0, *tiles.counts, one.groups, inner, m, pitches[1], base, *tiles.steps, *tiles.bounds)
                place = (*taps, h.outs, w.outs, first * plane * filters, *out_steps)
                finish(context, n, (image, filter, sums, out), (*numbers, *place), group_size(n))

    return step, space.need


def _filter_step(one: Convolution, context: Context, dtype: str) -> tuple[Step, int]:
    """Return the step that computes the gradient of a filter, and its workspace."""
    found = _tiled(one, one.lines())
    if found is None:
        return registers.filter_step(one, context, dtype)
    h, w = found
    channels, filters, itemsize = one.groups * one.channels, one.groups * one.filters, ITEMSIZE[dtype]
    tile = tile_of(context, dtype, one.channels, one.filters)
    groups, ways = SPOTS * one.groups, -(-one.filters // tile.width)
    pitches = SPOTS * channels + LANES, SPOTS * filters
    total_nbytes, space = groups * ways * one.channels * tile.width * itemsize, Workspace()
    each, room = sum(pitches) * itemsize, max(CHUNK, total_nbytes)
    tiles = _Tiles(context, dtype, one, channels, found, each, room, space)
    made_at = space.take(tiles.most * pitches[0] * itemsize)
    seen_at = space.take((tiles.most * pitches[1] + tile.width) * itemsize)  # vectors reach over the last filters
    total_at = space.take(total_nbytes)
    spread, product = texts.spread_kernel(context, dtype, one.last), filter_kernel(context, dtype, tile)
    finish = texts.gradient_kernel(context, dtype, tile)
    plane = h.outs * w.outs
    y_steps = (plane * filters, *((w.outs * filters, filters, 1) if one.last else (w.outs, 1, plane)))
    x_steps = (
        h.size * w.size * channels,
        *((w.size * channels, channels, 1) if one.last else (w.size, 1, h.size * w.size)),
    )
    items = groups * ways * -(-one.channels // tile.rows)
    wanted = one.groups * ways * -(-one.channels // SIDE)

    def step(context: Context, io: IO, scratch: Span) -> None:
        x, y, out = io.span(one.image), io.span(one.windows), io.span(one.out)
        made, seen, total = (part(scratch, at) for at in (made_at, seen_at, total_at))
        for first, images in tiles.parts():
            image, base = tiles.laid(context, x, scratch, first, images)
            for tile0, n in tiles.chunks(images):
                tiles.transform(context, image, base, made, pitches[0], tile0, n)
                place = (tile0, *tiles.counts, filters, first * plane * filters, *y_steps, h.outs, w.outs)
                spread(context, n, (y, seen), place, group_size(n))
                sizes = (
                    *(groups, pitches[0], one.channels, one.filters, 0, 1, 0, n, 1, n, 1, 1, 1, 1, 1, 1),
                    one.channels,
                )
                product(context, items, (made, seen, total), (*sizes, 0, 1, int(first + tile0 > 0)), HEAVY)
        numbers = (one.groups, one.channels, one.filters, one.images, *x_steps, *tiles.bounds, *y_steps, h.outs, w.outs)
        finish(context, wanted, (total, x, y, out), numbers, HEAVY)

    return step, space.need


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel that runs the computations of a call, those by tiles that may be."""
    return registers.prepared(call, context, _step, _filter_step)


def supports(call: Call) -> str | None:
    """Return why a call is left to other kernels."""
    reason = registers.supports(call)
    if reason is not None or unknown_dims(call):
        return reason
    lines = (
        (one, each)
        for one in convolutions_of(call)
        for each in ([one.lines()] if one.kind == "filter" else one.correlations())
    )
    if any(_tiled(one, each) for one, each in lines):
        return None
    return "no correlation of 3 x 3 neighbours, one by one, of enough channels and filters"


def _registered(op: str) -> Kernel:
    prefers = BACKWARD if op.endswith("_grad") else FORWARD
    options = KernelOptions(prefers=prefers, written_for="registers")
    return register_kernel(
        op, "cpu", "language", library="winograd", dtypes=(DTYPE,), options=options, supports=supports
    )(convolve)


conv2d, conv2d_grad = _registered("conv2d"), _registered("conv2d_grad")
conv2d_transpose, conv2d_transpose_grad = _registered("conv2d_transpose"), _registered("conv2d_transpose_grad")
