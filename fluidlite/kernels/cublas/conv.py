"""Convolutions and transposed ones with their gradients: the windows of images as columns, and products of cuBLAS.

The columns of a few images at a time lie in the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE, Convolution, Line, convolutions_of, nothing_fused
from fluidlite.kernels.language.source import (
    MOVED,
    Buffer,
    Step,
    Workspace,
    build,
    ctype,
    in_turn,
    part,
    store,
)
from fluidlite.plugin import IO, Call, Context, Span, compute_dtype, register_kernel

from .gemm import LONGEST, REALS, Matrices, Multiply, address, cublas

ENOUGH, ENOUGH_BACKWARD = 1 << 30, 1 << 24
"""Multiplications from which on products are faster than loops, whose gradients take longer than their windows."""
COLUMNS = 256 << 20
"""Bytes of columns made at a time; those of one image may be more."""
GROUPS = 16
"""More groups are a product each: loops are faster."""
_ONCE = Line(1, 0, 1, 0, 1, 1, 1, 0, 1)

# A place of a channel of an image an item: what each tap reads there.
_MAKE = """
  int r = (int)gid;
  const int p = r % (int)positions; r /= (int)positions;
  const int c = r % (int)channels, n = r / (int)channels;
  const int w = p % (int)w_count, q = p / (int)w_count, h = q % (int)h_count, d = q / (int)h_count;
  const index_t source = base + ((index_t)n * channels + c) * d_size * h_size * w_size;
  index_t to = c * (d_taps * h_taps * w_taps) * tap_step + n * image_step + p;
  for (int i = 0; i < (int)d_taps; ++i) {
    const int at_d = (int)d_start + (int)d_stride * d + (int)d_reach * i;
    for (int j = 0; j < (int)h_taps; ++j) {
      const int at_h = (int)h_start + (int)h_stride * h + (int)h_reach * j;
      const int inside = at_d >= 0 && at_d < (int)d_size && at_h >= 0 && at_h < (int)h_size;
      for (int k = 0; k < (int)w_taps; ++k) {
        const int at_w = (int)w_start + (int)w_stride * w + (int)w_reach * k;
        $T value = 0;
        if (inside && at_w >= 0 && at_w < (int)w_size) value = image[source + (at_d * h_size + at_h) * w_size + at_w];
        columns[to] = value;
        to += tap_step;
      }
    }
  }
"""
# An element of the filter an item, in the order of taps.
_PACK = """
  int r = (int)gid;
  const int k = r % (int)w_taps; r /= (int)w_taps;
  const int j = r % (int)h_taps; r /= (int)h_taps;
  const int i = r % (int)d_taps; r /= (int)d_taps;
  const int c = r % (int)inner; r /= (int)inner;
  const int row = r % (int)rows, g = r / (int)rows;
  const index_t tap = ((d_tap + d_next * i) * kernel_h + h_tap + h_next * j) * kernel_w + w_tap + w_next * k;
  packed[gid] = filter[g * block + row * row_step + c * inner_step + tap];
"""
# A place of a channel an item.
_PLACE = """
  int r = (int)gid;
  const int p = r % (int)positions; r /= (int)positions;
  const int w = p % (int)w_count, q = p / (int)w_count, h = q % (int)h_count, d = q / (int)h_count;
  const index_t line = (r * d_size + d_first + d_step * d) * h_size + h_first + h_step * h;
  out[base + line * w_size + w_first + w_step * w] = $value;
"""
# Images of channels as channels of images.
_TURN = """
  int r = (int)gid;
  const int p = r % (int)positions; r /= (int)positions;
  const int c = r % (int)channels, n = r / (int)channels;
  turned[((index_t)c * images + n) * positions + p] = windows[base + gid];
"""
_NARROW = "$narrow"


def supports(call: Call) -> str | None:
    """Why it is left to loops, or to others."""
    found = cublas()
    if isinstance(found, str):
        return found
    if not call.known:
        return "its size, which decides, is not known yet"
    enough = ENOUGH_BACKWARD if call.op.type.endswith("_grad") else ENOUGH
    for one in convolutions_of(call):
        places = one.images * one.groups * prod(one.counts)
        if one.last:
            return "channels come last"
        if one.groups > GROUPS:
            return f"{one.groups} groups"
        if places * one.filters * one.channels * one.taps < enough:
            return "short convolutions are faster by loops"
        columns = max(prod(one.sizes), prod(one.counts)) * one.groups * max(one.channels, one.filters) * one.taps
        if max(prod(one.image_dims()), prod(one.windows_dims()), columns) >= LONGEST:  # as kernels here count
            return f"more than {LONGEST:,} elements, or columns of an image"
    return nothing_fused(call)


def _build(context: Context, name: str, dtype: str, buffers: str, names: str, text: str, **words: str) -> Any:
    """A kernel that reads the first buffer and writes the last one, as elements of a size."""
    *read, written = buffers.split()
    moved = MOVED[ITEMSIZE[dtype]]
    given = [*(Buffer(each, moved) for each in read), Buffer(written, moved, True)]
    return build(context, f"{name}_{moved}", given, names.split(), text, {"T": ctype(context, moved), **words})


_DIMS = ("d", "h", "w")


def _names(*words: str) -> str:
    return " ".join(f"{dim}_{word}" for word in words for dim in _DIMS)


def _facts(dims: Sequence[Any], *words: str) -> tuple[int, ...]:
    return tuple(getattr(each, word) for word in words for each in dims)


def _three(sizes: Sequence[Any], one: Any) -> tuple[Any, ...]:
    return (one,) * (3 - len(sizes)) + tuple(sizes)


class _Columns:
    """What the taps of a correlation read of images, a row for each tap of each channel.

    ``together``: the images of a part stand side by side in each row; they lie one behind the other else.
    """

    def __init__(
        self, context: Context, dtype: str, lines: Sequence[Line], sizes: Sequence[int], channels: int, together: bool
    ) -> None:
        self.lines, self.sizes, self.channels = _three(lines, _ONCE), _three(sizes, 1), channels
        self.positions = prod(line.count for line in self.lines)
        self.rows = channels * prod(line.taps for line in self.lines)
        self.image, self.together = channels * prod(self.sizes), together
        facts = "count", "taps", "start", "stride", "reach"
        names = f"base positions channels tap_step image_step {_names(*facts, 'size')}"
        self._make = _build(context, "conv_columns", dtype, "image columns", names, _MAKE)
        self._numbers = (*_facts(self.lines, *facts), *self.sizes)

    def parts(self, images: int, dtype: str) -> int:
        """How many images' columns are made at a time."""
        nbytes: int = self.rows * self.positions * ITEMSIZE[dtype]
        return max(1, min(images, COLUMNS // max(1, nbytes)))

    def make(self, context: Context, source: Span, target: Span, first: int, images: int) -> None:
        """Make those of some images."""
        positions = self.positions
        steps = (images * positions, positions) if self.together else (positions, self.rows * positions)
        numbers = (first * self.image, positions, self.channels, *steps, *self._numbers)
        self._make(context, images * self.channels * positions, (source, target), numbers, None)


def _correlation(one: Convolution, lines: Sequence[Line], dtype: str, context: Context) -> tuple[Step, int]:
    """Return the step that computes the windows, or the part of an image that ``lines`` reach, and its workspace."""
    forward, groups = one.kind == "windows", one.groups
    source, sizes, outs = (one.image, one.sizes, one.counts) if forward else (one.windows, one.counts, one.sizes)
    inner, rows = (one.channels, one.filters) if forward else (one.filters, one.channels)
    columns = _Columns(context, dtype, lines, sizes, groups * inner, False)
    positions, depth, size = columns.positions, columns.rows // groups, ITEMSIZE[dtype]
    out_image, wide = groups * rows * prod(outs), _three(outs, 1)
    plain = all((line.first, line.step, line.count) == (0, 1, n) for line, n in zip(columns.lines, wide, strict=True))
    several = columns.parts(one.images, dtype)
    space = Workspace()
    columns_at = space.take(several * columns.rows * positions * size)
    packed_at = space.take(groups * rows * depth * size)
    made_at = space.take(0 if plain else several * groups * rows * positions * size)
    names = f"rows inner {_names('taps')} {_names('tap')} {_names('next')} kernel_h kernel_w block row_step inner_step"
    pack = _build(context, "conv_pack", dtype, "filter packed", names, _PACK)
    kernel, far = _three(one.shape.kernel, 1), one.channels * one.taps
    pack_numbers = (
        *(rows, inner),
        *_facts(columns.lines, "taps", "tap", "tap_step"),
        *(kernel[1], kernel[2], one.filters * far),
        *((far, one.taps) if forward else (one.taps, far)),
    )
    names = f"base positions {_names('count', 'first', 'step')} {_names('size')}"
    place = _build(context, "conv_place", dtype, "made out", names, _PLACE, value="made[gid]" if depth else "0")
    place_numbers = (positions, *_facts(columns.lines, "count", "first", "step"), *wide)
    a, b = Matrices(depth), Matrices(positions, columns.rows * positions)
    c = Matrices(positions, out_image if plain else groups * rows * positions)
    products = {
        count: Multiply(dtype, (rows, positions, depth), a, b, c, count)
        for count in {several, one.images % several}
        if count and depth
    }

    def step(context: Context, io: IO, scratch: Span) -> None:
        image, out = io.span(source), io.span(one.out)
        read, packed, made = (part(scratch, at) for at in (columns_at, packed_at, made_at))
        if depth:
            pack(context, groups * rows * depth, (io.span(one.filter), packed), pack_numbers, None)
        for first in range(0, one.images, several):
            count = min(several, one.images - first)
            target = address(out) + first * out_image * size if plain else address(made)
            if depth:
                columns.make(context, image, read, first, count)
                for g in range(groups):
                    offsets = g * rows * depth, g * depth * positions, g * rows * positions
                    given = address(packed), address(read), target
                    a_at, b_at, out_at = (at + size * n for at, n in zip(given, offsets, strict=True))
                    products[count](context, a_at, b_at, out_at)
            if not plain:
                items = count * groups * rows * positions
                place(context, items, (made, out), (first * out_image, *place_numbers), None)

    return step, space.need


def _filter(one: Convolution, dtype: str, context: Context) -> tuple[Step, int]:
    """Return the step that computes the gradient of a filter, and its workspace: a sum over images."""
    groups, rows, wide, size = one.groups, one.filters, compute_dtype(dtype), ITEMSIZE[dtype]
    columns = _Columns(context, dtype, one.lines(), one.sizes, groups * one.channels, True)
    positions, depth = columns.positions, columns.rows // groups
    several, total = columns.parts(one.images, dtype), groups * rows * depth
    space = Workspace()
    columns_at = space.take(several * columns.rows * positions * size)
    turned_at = space.take(several * groups * rows * positions * size)
    total_at = space.take(total * ITEMSIZE[wide] if wide != dtype else 0)
    turn = _build(context, "conv_turn", dtype, "windows turned", "base positions channels images", _TURN)
    buffers = [Buffer("total", wide), Buffer("out", dtype, True)]
    text = {"narrow": store(context, dtype, "out[gid]", "total[gid]")}
    narrow = build(context, f"conv_narrow_{dtype}", buffers, [], _NARROW, text)
    products = {
        count: Multiply(
            dtype,
            (rows, depth, count * positions),
            Matrices(count * positions),
            Matrices(count * positions, 0, True),
            Matrices(depth),
            made=wide,
        )
        for count in {several, one.images % several}
        if count
    }

    def step(context: Context, io: IO, scratch: Span) -> None:
        image, windows, out = io.span(one.image), io.span(one.windows), io.span(one.out)
        read, turned = part(scratch, columns_at), part(scratch, turned_at)
        sums = part(scratch, total_at) if wide != dtype else out
        for first in range(0, one.images, several):
            count = min(several, one.images - first)
            columns.make(context, image, read, first, count)
            items = count * groups * rows * positions
            numbers = first * groups * rows * positions, positions, groups * rows, count
            turn(context, items, (windows, turned), numbers, None)
            for g in range(groups):
                a, b = (size * g * n * count * positions for n in (rows, depth))
                at = address(sums) + g * rows * depth * ITEMSIZE[wide]
                products[count](context, address(turned) + a, address(read) + b, at, first > 0)
        if wide != dtype:
            narrow(context, total, (sums, out), (), None)

    return step, space.need


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel that runs the computations of a call one after the other, in one workspace."""
    made: list[tuple[Step, int]] = []
    for one in (each.flattened() for each in convolutions_of(call)):
        dtype = call.dtype(one.out)
        if one.kind == "filter":
            made.append(_filter(one, dtype, context))
        else:
            made += [_correlation(one, lines, dtype, context) for lines in one.correlations()]
    return in_turn(made)


def _registered(op: str) -> Any:
    return register_kernel(op, "cuda", library="cublas", dtypes=tuple(REALS), supports=supports)(convolve)


conv2d, conv2d_grad = _registered("conv2d"), _registered("conv2d_grad")
conv3d, conv3d_grad = _registered("conv3d"), _registered("conv3d_grad")
conv2d_transpose, conv2d_transpose_grad = _registered("conv2d_transpose"), _registered("conv2d_transpose_grad")
conv3d_transpose, conv3d_transpose_grad = _registered("conv3d_transpose"), _registered("conv3d_transpose_grad")
