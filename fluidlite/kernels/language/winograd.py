"""Convolutions of 3 x 3 by Winograd's F(2 x 2, 3 x 3): four ninths of the products, see :mod:`winograd_texts`.

Tiles of an image are transformed, the sixteen products are those of sixteen groups of single windows in registers
(:mod:`conv_vectors`), and windows are made of these. Sums are in a fixed order, whatever stands beside an image. What a
window reads that is not finite reaches no other. Numbers are rounded at the size of what a tile of 4 x 4 holds, not at
that of a window's own elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.kernel_support import ITEMSIZE, Convolution, Kernel, Line, convolutions_of
from fluidlite.plugin import IO, Call, Context, KernelOptions, Span, register_kernel

from . import conv_registers as registers
from .conv_registers import BACKWARD, FORWARD, Dim, Step, dims
from .conv_vectors import SIDE, planes_kernel, tile_of, windows_kernel as product_kernel
from .source import HEAVY, Packing, Workspace, group_size, part
from .winograd_texts import LANES, SPOTS, filter_kernel, image_kernel, windows_kernel

DTYPE = "float32"
FEWEST_PAIRS = 512
"""Channels times filters of a group, below which transforms cost what products save."""
CHUNK = 2 << 20
"""Bytes of transforms made at a time, or as many as the packed filter has if these are more."""


def _tiled(one: Convolution, lines: Sequence[Line]) -> tuple[Dim, Dim] | None:
    """The dims of a correlation that goes tile by tile; None for others."""
    if one.kind == "filter" or min(one.channels, one.filters) < LANES or one.channels * one.filters < FEWEST_PAIRS:
        return None
    if any(line.taps != 3 or line.stride != 1 or abs(line.reach) != 1 or line.step != 1 for line in lines):
        return None
    return dims(lines, one.sizes if one.kind == "windows" else one.counts)


def _step(one: Convolution, lines: Sequence[Line], context: Context, dtype: str, packing: Packing) -> tuple[Step, int]:
    found = _tiled(one, lines)
    if found is None:
        return registers.windows_step(one, lines, context, dtype, packing)
    h, w = found
    forward = one.kind == "windows"
    source, inner, m = (one.image, one.channels, one.filters) if forward else (one.windows, one.filters, one.channels)
    channels, filters, itemsize = one.groups * inner, one.groups * m, ITEMSIZE[dtype]
    pitches = SPOTS * channels + LANES, SPOTS * filters + LANES  # tiles lie in different sets of the cache
    h_tiles, w_tiles = -(-h.outs // 2), -(-w.outs // 2)
    image_tiles = h_tiles * w_tiles
    tile = tile_of(context, dtype, image_tiles, m)
    groups, tiles = SPOTS * one.groups, -(-m // tile.width)
    packed_nbytes = groups * tiles * inner * tile.width * itemsize
    each = sum(pitches) * itemsize
    whole = one.images * image_tiles
    most = max(tile.rows, min(whole, max(CHUNK, packed_nbytes) // each))
    chunk = -(-whole // -(-whole // most))
    space = Workspace()
    packed_at = space.take(packed_nbytes)
    made_at = space.take(max(chunk, tile.rows) * pitches[0] * itemsize)
    sums_at = space.take(max(chunk, tile.rows) * pitches[1] * itemsize)
    plane = h.size * w.size
    laid_at = 0 if one.last else space.take(one.images * plane * channels * itemsize)
    lay = None if one.last else planes_kernel(context, dtype, False)
    lay_numbers = (0, h.size, w.size, channels, channels * plane, plane, w.size, 1, 0, w.size, 0)
    transform, pack = image_kernel(context, dtype), filter_kernel(context, dtype, tile)
    product, finish = product_kernel(context, dtype, tile, True), windows_kernel(context, dtype, one.last)
    filter_size = one.channels * 9
    sides = (filter_size, 9) if forward else (9, filter_size)
    taps = (h.tap, w.tap, h.tap_step, w.tap_step)
    pack_numbers = (inner, m, groups // SPOTS * tiles * inner * tile.width, one.filters * filter_size, *sides, *taps)
    pack_items = one.groups * tiles * -(-inner // SIDE)
    out_plane = h.outs * w.outs
    out_steps = (w.outs * filters, filters, 1) if one.last else (w.outs, 1, out_plane)
    place = (0, plane * channels, w.size * channels, channels)
    bounds = (h.least, w.least, h.size, w.size)

    def pack_all(context: Context, filter: Span, packed: Span) -> None:
        pack(context, pack_items, (filter, packed), pack_numbers, HEAVY)

    kept_at = packing.add(packed_nbytes, ("winograd", dtype, tile, pack_items, pack_numbers), pack_all)

    def step(context: Context, io: IO, scratch: Span) -> None:
        image, filter, out, kept = io.span(source), io.span(one.filter), io.span(one.out), io.packed(one.filter)
        packed = part(scratch, packed_at) if kept is None else part(kept, kept_at)
        if kept is None:
            pack_all(context, filter, packed)
        if lay is not None:
            laid, items = part(scratch, laid_at), one.images * h.size
            lay(context, items, (image, laid), lay_numbers, group_size(items))
            image = laid
        made, sums = part(scratch, made_at), part(scratch, sums_at)
        for first in range(0, whole, chunk):
            count = min(chunk, whole - first)
            rows = max(count, tile.rows)
            transform(
                context,
                count,
                (image, made),
                (first, h_tiles, w_tiles, channels, pitches[0], *place, *bounds),
                group_size(count),
            )
            given = (0, groups * tiles, 0, 1, pitches[0], inner, m, 0, 1, 0, rows, 1, rows, 1, 1, 1, 1, 1, 1, inner)
            items = groups * tiles * -(-rows // tile.rows)
            product(context, items, (made, packed, sums), (*given, 0, 0, 1, 0, pitches[1]), HEAVY)
            finish(
                context,
                count,
                (image, filter, sums, out),
                (
                    *(first, h_tiles, w_tiles, one.groups, inner, m, pitches[1], *place, *bounds),
                    *(one.filters * filter_size, *sides, *taps, h.outs, w.outs),
                    *(0, out_plane * filters, *out_steps),
                ),
                group_size(count),
            )

    return step, space.need


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel that runs the computations of a call, those by tiles that may be."""
    return registers.prepared(call, context, _step)


def supports(call: Call) -> str | None:
    """Return why a call is left to other kernels."""
    reason = registers.supports(call)
    if reason is not None or registers.unknown(call):
        return reason
    found = (
        _tiled(one, lines) for one in convolutions_of(call) if one.kind != "filter" for lines in one.correlations()
    )
    return None if any(found) else "no correlation of 3 x 3 neighbours, one by one, of enough channels and filters"


def _registered(op: str) -> Kernel:
    prefers = BACKWARD if op.endswith("_grad") else FORWARD
    options = KernelOptions(prefers=prefers, written_for="registers")
    return register_kernel(
        op, "cpu", "language", library="winograd", dtypes=(DTYPE,), options=options, supports=supports
    )(convolve)


conv2d, conv2d_grad = _registered("conv2d"), _registered("conv2d_grad")
conv2d_transpose, conv2d_transpose_grad = _registered("conv2d_transpose"), _registered("conv2d_transpose_grad")
