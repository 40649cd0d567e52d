"""Convolutions, transposed convolutions and their gradients by im2col and cuBLAS.

The workspace holds the columns of some images at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE, Convolution, CorrelationAxis, convolutions_of, fused_refusal
from fluidlite.kernels.language.source import (
    COPY_DTYPES,
    Buffer,
    Packing,
    Step,
    Workspace,
    build,
    convolution_kernel,
    ctype,
    span_at,
    store,
)
from fluidlite.plugin import IO, Call, Context, Span, compute_dtype, register_kernel

from .gemm import CUDA_DATA_TYPES, INT32_LIMIT, BatchedGemm, MatrixLayout, address, cublas

MIN_MULTIPLIES, MIN_GRADIENT_MULTIPLIES = 1 << 30, 1 << 24
"""Minimum multiply-adds of a convolution and of a gradient: with fewer, generated loops are faster."""
MAX_COLUMNS_BYTES = 256 << 20
"""Maximum bytes of the columns in the workspace; those of one image may take more."""
MAX_GROUPS = 16
"""Maximum groups: each group is one GEMM, so with more groups generated loops are faster."""
_UNIT_LINE = CorrelationAxis(1, 0, 1, 0, 1, 1, 1, 0, 1)  # a missing dim: one window of one tap

# im2col: a work-item writes, for one position in one channel of one image, the elements that all taps read.
_IM2COL = """
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
# A work-item copies one element of the filter, in the order of taps.
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
# A work-item copies one position of a channel.
_PLACE = """
  int r = (int)gid;
  const int p = r % (int)positions; r /= (int)positions;
  const int w = p % (int)w_count, q = p / (int)w_count, h = q % (int)h_count, d = q / (int)h_count;
  const index_t line = (r * d_size + d_first + d_step * d) * h_size + h_first + h_step * h;
  out[base + line * w_size + w_first + w_step * w] = $value;
"""
# [images, channels, positions] transposed to [channels, images, positions].
_TRANSPOSE = """
  int r = (int)gid;
  const int p = r % (int)positions; r /= (int)positions;
  const int c = r % (int)channels, n = r / (int)channels;
  turned[((index_t)c * images + n) * positions + p] = windows[base + gid];
"""
_NARROW = "$narrow"


def supports(call: Call) -> str | None:
    """Return why a call is left to loops or to other libraries, or None."""
    library = cublas()
    if isinstance(library, str):
        return library
    if not call.is_static:
        return "its size, which decides, is not known yet"
    min_multiplies = MIN_GRADIENT_MULTIPLIES if call.op.type.endswith("_grad") else MIN_MULTIPLIES
    for conv in convolutions_of(call):
        windows = conv.images * conv.groups * prod(conv.counts)
        if conv.last:
            return "channels come last"
        if conv.groups > MAX_GROUPS:
            return f"{conv.groups} groups"
        if windows * conv.filters * conv.channels * conv.taps < min_multiplies:
            return "short convolutions are faster by loops"
        columns = max(prod(conv.sizes), prod(conv.counts)) * conv.groups * max(conv.channels, conv.filters) * conv.taps
        if max(prod(conv.image_dims()), prod(conv.windows_dims()), columns) >= INT32_LIMIT:  # the kernels use int
            return f"more than {INT32_LIMIT:,} elements, or columns of an image"
    return fused_refusal(call)


def _build(context: Context, name: str, dtype: str, buffers: str, names: str, text: str, **words: str) -> Any:
    """Return a kernel that writes the last buffer and reads the others; it copies elements by their bytes."""
    *read, output = buffers.split()
    bits = COPY_DTYPES[ITEMSIZE[dtype]]
    parameters = [*(Buffer(each, bits) for each in read), Buffer(output, bits, True)]
    return build(context, f"{name}_{bits}", parameters, names.split(), text, {"T": ctype(context, bits), **words})


_DIMS = ("d", "h", "w")


def _names(*words: str) -> str:
    return " ".join(f"{dim}_{word}" for word in words for dim in _DIMS)


def _fields(dims: Sequence[Any], *words: str) -> tuple[int, ...]:
    return tuple(getattr(dim, word) for word in words for dim in dims)


def _three(sizes: Sequence[Any], conv: Any) -> tuple[Any, ...]:
    return (conv,) * (3 - len(sizes)) + tuple(sizes)


class _Columns:
    """The columns of images (im2col): a row for each tap of each channel.

    ``joined``: whether each row has the positions of all images; otherwise each image has its own matrix.
    """

    def __init__(
        self,
        context: Context,
        dtype: str,
        lines: Sequence[CorrelationAxis],
        sizes: Sequence[int],
        channels: int,
        joined: bool,
    ) -> None:
        self.lines, self.sizes, self.channels = _three(lines, _UNIT_LINE), _three(sizes, 1), channels
        self.positions = prod(line.count for line in self.lines)
        self.rows = channels * prod(line.taps for line in self.lines)
        self.image_elements, self.joined = channels * prod(self.sizes), joined
        fields = "count", "taps", "start", "stride", "reach"
        names = f"base positions channels tap_step image_step {_names(*fields, 'size')}"
        self._im2col = _build(context, "conv_columns", dtype, "image columns", names, _IM2COL)
        self._numbers = (*_fields(self.lines, *fields), *self.sizes)

    def parts(self, images: int, dtype: str) -> int:
        """Return the number of images whose columns are written at a time."""
        nbytes: int = self.rows * self.positions * ITEMSIZE[dtype]
        return max(1, min(images, MAX_COLUMNS_BYTES // max(1, nbytes)))

    def write(self, context: Context, source: Span, target: Span, first: int, images: int) -> None:
        """Write the columns of some images."""
        positions = self.positions
        steps = (images * positions, positions) if self.joined else (positions, self.rows * positions)
        numbers = (first * self.image_elements, positions, self.channels, *steps, *self._numbers)
        self._im2col(context, images * self.channels * positions, (source, target), numbers, None)


def _correlation(
    conv: Convolution, lines: Sequence[CorrelationAxis], context: Context, dtype: str, packing: Packing
) -> list[Step]:
    """Return the step that computes the windows, or the part of an image that ``lines`` reach, and its workspace."""
    forward, groups = conv.kind == "windows", conv.groups
    source, inner, rows, sizes, outs = conv.sides()
    columns = _Columns(context, dtype, lines, sizes, groups * inner, False)
    positions, depth, size = columns.positions, columns.rows // groups, ITEMSIZE[dtype]
    out_image, sizes3 = groups * rows * prod(outs), _three(outs, 1)
    dense = all((line.first, line.step, line.count) == (0, 1, n) for line, n in zip(columns.lines, sizes3, strict=True))
    chunk = columns.parts(conv.images, dtype)
    space = Workspace()
    columns_at = space.take(chunk * columns.rows * positions * size)
    packed_at = space.take(groups * rows * depth * size)
    results_at = space.take(0 if dense else chunk * groups * rows * positions * size)
    names = f"rows inner {_names('taps')} {_names('tap')} {_names('next')} kernel_h kernel_w block row_step inner_step"
    pack = _build(context, "conv_pack", dtype, "filter packed", names, _PACK)
    kernel, filter_size = _three(conv.shape.kernel, 1), conv.channels * conv.taps
    pack_numbers = (
        *(rows, inner),
        *_fields(columns.lines, "taps", "tap", "tap_step"),
        *(kernel[1], kernel[2], conv.filters * filter_size),
        *((filter_size, conv.taps) if forward else (conv.taps, filter_size)),
    )
    names = f"base positions {_names('count', 'first', 'step')} {_names('size')}"
    place_results = _build(context, "conv_place", dtype, "made out", names, _PLACE, value="made[gid]" if depth else "0")
    place_numbers = (positions, *_fields(columns.lines, "count", "first", "step"), *sizes3)
    a, b = MatrixLayout(depth), MatrixLayout(positions, columns.rows * positions)
    c = MatrixLayout(positions, out_image if dense else groups * rows * positions)
    products = {
        count: BatchedGemm(dtype, (rows, positions, depth), a, b, c, count)
        for count in {chunk, conv.images % chunk}
        if count and depth
    }

    def step(context: Context, io: IO, scratch: Span) -> None:
        image, out = io.span(source), io.span(conv.out)
        column_span, packed, results = (span_at(scratch, at) for at in (columns_at, packed_at, results_at))
        if depth:
            pack(context, groups * rows * depth, (io.span(conv.filter), packed), pack_numbers, None)
        for first in range(0, conv.images, chunk):
            count = min(chunk, conv.images - first)
            target = address(out) + first * out_image * size if dense else address(results)
            if depth:
                columns.write(context, image, column_span, first, count)
                for g in range(groups):
                    offsets = g * rows * depth, g * depth * positions, g * rows * positions
                    bases = address(packed), address(column_span), target
                    a_at, b_at, out_at = (at + size * n for at, n in zip(bases, offsets, strict=True))
                    products[count](context, a_at, b_at, out_at)
            if not dense:
                items = count * groups * rows * positions
                place_results(context, items, (results, out), (first * out_image, *place_numbers), None)

    return [(step, space.need)]


def _filter(conv: Convolution, context: Context, dtype: str) -> Step:
    """Return the step that computes the gradient of a filter, and its workspace: a sum over images."""
    groups, rows, wide, size = conv.groups, conv.filters, compute_dtype(dtype), ITEMSIZE[dtype]
    columns = _Columns(context, dtype, conv.lines(), conv.sizes, groups * conv.channels, True)
    positions, depth = columns.positions, columns.rows // groups
    chunk, total = columns.parts(conv.images, dtype), groups * rows * depth
    space = Workspace()
    columns_at = space.take(chunk * columns.rows * positions * size)
    transposed_at = space.take(chunk * groups * rows * positions * size)
    total_at = space.take(total * ITEMSIZE[wide] if wide != dtype else 0)
    transpose = _build(context, "conv_turn", dtype, "windows turned", "base positions channels images", _TRANSPOSE)
    buffers = [Buffer("total", wide), Buffer("out", dtype, True)]
    text = {"narrow": store(context, dtype, "out[gid]", "total[gid]")}
    narrow = build(context, f"conv_narrow_{dtype}", buffers, [], _NARROW, text)
    products = {
        count: BatchedGemm(
            dtype,
            (rows, depth, count * positions),
            MatrixLayout(count * positions),
            MatrixLayout(count * positions, 0, True),
            MatrixLayout(depth),
            out_dtype=wide,
        )
        for count in {chunk, conv.images % chunk}
        if count
    }

    def step(context: Context, io: IO, scratch: Span) -> None:
        image, windows, out = io.span(conv.image), io.span(conv.windows), io.span(conv.out)
        column_span, transposed = span_at(scratch, columns_at), span_at(scratch, transposed_at)
        sums = span_at(scratch, total_at) if wide != dtype else out
        for first in range(0, conv.images, chunk):
            count = min(chunk, conv.images - first)
            columns.write(context, image, column_span, first, count)
            items = count * groups * rows * positions
            numbers = first * groups * rows * positions, positions, groups * rows, count
            transpose(context, items, (windows, transposed), numbers, None)
            for g in range(groups):
                a, b = (size * g * n * count * positions for n in (rows, depth))
                at = address(sums) + g * rows * depth * ITEMSIZE[wide]
                products[count](context, address(transposed) + a, address(column_span) + b, at, first > 0)
        if wide != dtype:
            narrow(context, total, (sums, out), (), None)

    return step, space.need


def convolve(call: Call, context: Context) -> Any:
    """Return the kernel of a call, from columns."""
    return convolution_kernel(call, context, _correlation, _filter, flattened=True)


def _registered(op: str) -> Any:
    return register_kernel(op, "cuda", library="cublas", dtypes=tuple(CUDA_DATA_TYPES), supports=supports)(convolve)


conv2d, conv2d_grad = _registered("conv2d"), _registered("conv2d_grad")
conv3d, conv3d_grad = _registered("conv3d"), _registered("conv3d_grad")
conv2d_transpose, conv2d_transpose_grad = _registered("conv2d_transpose"), _registered("conv2d_transpose_grad")
conv3d_transpose, conv3d_transpose_grad = _registered("conv3d_transpose"), _registered("conv3d_transpose_grad")
