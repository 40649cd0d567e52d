"""im2sequence and row_conv, with gradients."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fluidlite.plugin import (
    IO,
    ITEMSIZE,
    Call,
    Context,
    ImageRun,
    Span,
    compute_dtype,
    image_runs,
    register_kernel,
    row_offsets,
)

from .source import MOVED, Buffer, build, ctype, dealt, load, store

# im2sequence -------------------------------------------------------------------------------------------------------

_NUMBERS = ["first", "rows", "columns", "row", "channels", "height", "width", "kh", "kw", "sh", "sw", "up", "left"]

# A channel of a window an item.
_UNFOLD = """
  index_t rest = gid / channels; const index_t c = gid - rest * channels;
  const index_t to = (row + rest) * channels * kh * kw + c * kh * kw;
  index_t next = rest / columns; const index_t column = rest - next * columns; rest = next;
  next = rest / rows;
  const index_t top = (rest - next * rows) * sh - up, side = column * sw - left;
  const index_t from = ((first + next) * channels + c) * height;
  for (index_t i = 0; i < kh; ++i)
    for (index_t j = 0; j < kw; ++j) {
      const index_t h = top + i, w = side + j;
      out[to + i * kw + j] = h >= 0 && h < height && w >= 0 && w < width ? x[(from + h) * width + w] : 0;
    }
"""

# A row of all channels an item: their windows lie side by side.
_FOLD = """
  const index_t image = gid / height, h = gid - image * height;
  const index_t r_low = h + up - kh + 1, r_high = (h + up) / sh + 1;
  const index_t r0 = r_low <= 0 ? 0 : (r_low + sh - 1) / sh, r1 = r_high < rows ? r_high : rows;
  for (index_t w = 0; w < width; ++w) {
    const index_t q_low = w + left - kw + 1, q_high = (w + left) / sw + 1;
    const index_t q0 = q_low <= 0 ? 0 : (q_low + sw - 1) / sw, q1 = q_high < columns ? q_high : columns;
    for (index_t c = 0; c < channels; ++c) {
      $T sum = 0;
      for (index_t r = r0; r < r1; ++r)
        for (index_t q = q0; q < q1; ++q) {
          const index_t i = h + up - r * sh, j = w + left - q * sw;
          sum += $dout;
        }
      const index_t to = (((first + image) * channels + c) * height + h) * width;
      $store
    }
  }
"""


def _numbers(call: Call, run: ImageRun) -> tuple[int, ...]:
    _, channels, height, width = call.dims("X")
    up, left = call.attr("paddings")[:2]
    return (
        run.first, run.height, run.width, run.row, channels, height, width, *call.attr("kernels"),
        *call.attr("strides"), up, left,
    )  # fmt: skip


@register_kernel("im2sequence", "dialect")
def im2sequence(call: Call, context: Context) -> Any:
    """A channel of a window an item; images of different sizes take a launch each."""
    moved, channels = MOVED[ITEMSIZE[call.dtype("X")]], call.dims("X")[1]
    kernel = build(context, f"im2sequence_{moved}", [Buffer("x", moved), Buffer("out", moved, True)], _NUMBERS, _UNFOLD)
    launches = [
        (run.images * run.height * run.width * channels, _numbers(call, run)) for run in image_runs(call) or ()
    ]  # fmt: skip

    def run(context: Context, io: IO) -> None:
        for items, numbers in launches:
            kernel(context, items, (io.span("X"), io.span("Out")), numbers, dealt(items))

    return run


@register_kernel("im2sequence_grad", "dialect")
def im2sequence_grad(call: Call, context: Context) -> Any:
    """A row of X's gradient an item: the sums over the windows that reach it."""
    dtype, dims = call.dtype("Out@GRAD"), call.dims("X@GRAD")
    kernel = build(
        context, f"im2sequence_grad_{dtype}", [Buffer("dout", dtype), Buffer("dx", dtype, True)], _NUMBERS, _FOLD,
        {
            "T": ctype(context, compute_dtype(dtype)),
            "dout": load(
                dtype, "dout[((row + (image * rows + r) * columns + q) * channels + c) * kh * kw + i * kw + j]"
            ),
            "store": store(context, dtype, "dx[to + w]", "sum"),
        },
    )  # fmt: skip
    launches = [(run.images * dims[2], _numbers(call, run)) for run in image_runs(call) or ()]

    def run(context: Context, io: IO) -> None:
        for items, numbers in launches:
            kernel(context, items, (io.span("Out@GRAD"), io.span("X@GRAD")), numbers, dealt(items))

    return run


# row_conv ----------------------------------------------------------------------------------------------------------

LANES = 64
"""Columns that one item makes."""

_SEARCH = """
  const index_t chunks = (width + $lanes - 1) / $lanes;
  const index_t row = gid / chunks, d0 = (gid - row * chunks) * $lanes;
  const int lanes = width - d0 < $lanes ? (int)(width - d0) : $lanes;
  $T acc[$lanes];
  for (int v = 0; v < lanes; ++v) acc[v] = 0;
"""
# The sequence of a row is looked for by halves; those without rows are passed over.
_ROWS = (
    _SEARCH
    + """
  index_t low = 0, high = sequences;
  while (high - low > 1) {
    const index_t middle = (low + high) / 2;
    if (offsets[middle] <= row) low = middle; else high = middle;
  }
  const index_t room = $room;
  for (index_t w = 0; w < ahead && w < room; ++w)
    for (int v = 0; v < lanes; ++v) acc[v] += $weight * $x;
  for (int v = 0; v < lanes; ++v) { $store }
"""
)
_FILTER = (
    _SEARCH
    + """
  for (index_t s = 0; s < sequences; ++s)
    for (index_t t = offsets[s]; t + row < offsets[s + 1]; ++t)
      for (int v = 0; v < lanes; ++v) acc[v] += $x * $dout;
  for (int v = 0; v < lanes; ++v) { $store }
"""
)


class _Rows:
    """Rows of sequences whose beginnings are copied into the workspace."""

    def __init__(self, call: Call, slot: str) -> None:
        dims, offsets = call.dims(slot), row_offsets(call, slot)
        self.content = memoryview(np.asarray(offsets, np.int64).tobytes())
        self.rows, self.width = prod(dims[:-1]), dims[-1]
        self.ahead = call.dims("Filter")[0]
        self.numbers = (self.width, len(offsets) - 1, self.ahead)
        self.chunks = -(-self.width // LANES)

    def offsets(self, context: Context, io: IO) -> Span:
        """The workspace with the beginnings."""
        assert io.workspace is not None
        span = io.workspace.span()
        context.copy_in(span, self.content)
        return span


_ROW_NUMBERS = ["width", "sequences", "ahead"]


def _row_kernel(call: Call, context: Context, name: str, x: str, text: str, words: dict[str, str]) -> Any:
    dtype = call.dtype(x)
    return build(
        context, f"row_conv_{name}_{dtype}",
        [Buffer("x", dtype), Buffer("other", dtype), Buffer("offsets", "int64"), Buffer("out", dtype, True)],
        _ROW_NUMBERS, text,
        {"T": ctype(context, compute_dtype(dtype)), "lanes": str(LANES),
         "store": store(context, dtype, "out[row * width + d0 + v]", "acc[v]"), **words},
    )  # fmt: skip


@register_kernel("row_conv", "dialect")
def row_conv(call: Call, context: Context) -> Any:
    """Some columns of a row an item."""
    dtype, rows = call.dtype("X"), _Rows(call, "X")
    kernel = _row_kernel(call, context, "ahead", "X", _ROWS, {
        "room": "offsets[low + 1] - row", "weight": load(dtype, "other[w * width + d0 + v]"),
        "x": load(dtype, "x[(row + w) * width + d0 + v]"),
    })  # fmt: skip
    items = rows.rows * rows.chunks

    def run(context: Context, io: IO) -> None:
        spans = (io.span("X"), io.span("Filter"), rows.offsets(context, io), io.span("Out"))
        kernel(context, items, spans, rows.numbers, dealt(items))

    run.workspace = rows.content.nbytes  # type: ignore[attr-defined]
    return run


@register_kernel("row_conv_grad", "dialect")
def row_conv_grad(call: Call, context: Context) -> Any:
    """Some columns of a row of X's gradient an item; of a row of the filter's, which adds up all sequences."""
    dtype, rows = call.dtype("X"), _Rows(call, "X")
    if call.has("X@GRAD"):
        back = _row_kernel(call, context, "back", "X", _ROWS, {
            "room": "row - offsets[low] + 1", "weight": load(dtype, "other[w * width + d0 + v]"),
            "x": load(dtype, "x[(row - w) * width + d0 + v]"),
        })  # fmt: skip
    if call.has("Filter@GRAD"):
        turn = _row_kernel(call, context, "filter", "X", _FILTER, {
            "x": load(dtype, "x[(t + row) * width + d0 + v]"), "dout": load(dtype, "other[t * width + d0 + v]"),
        })  # fmt: skip

    def run(context: Context, io: IO) -> None:
        offsets = rows.offsets(context, io)
        if io.has("X@GRAD"):
            items = rows.rows * rows.chunks
            spans = (io.span("Out@GRAD"), io.span("Filter"), offsets, io.span("X@GRAD"))
            back(context, items, spans, rows.numbers, dealt(items))
        if io.has("Filter@GRAD"):
            items = rows.ahead * rows.chunks
            spans = (io.span("X"), io.span("Out@GRAD"), offsets, io.span("Filter@GRAD"))
            turn(context, items, spans, rows.numbers, dealt(items))

    run.workspace = rows.content.nbytes  # type: ignore[attr-defined]
    return run
