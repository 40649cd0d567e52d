"""unfold and its gradient."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, block_counts, compute_dtype, register_kernel

from .source import MOVED, Buffer, build, ctype, dealt, load, store

_NUMBERS = ["height", "width", "rows", "columns", "kh", "kw", "sh", "sw", "up", "left", "dh", "dw"]

# One element of the windows, in all windows of a row of them, an item.
_UNFOLD = """
  index_t rest = gid / rows; const index_t r = gid - rest * rows;
  index_t next = rest / kw; const index_t j = rest - next * kw; rest = next;
  next = rest / kh;
  const index_t h = r * sh + (rest - next * kh) * dh - up;
  const index_t from = (next * height + h) * width, to = gid * columns;
  const int inside = h >= 0 && h < height;
  for (index_t q = 0; q < columns; ++q) {
    const index_t w = q * sw + j * dw - left;
    y[to + q] = inside && w >= 0 && w < width ? x[from + w] : 0;
  }
"""

# A row of the image an item: the windows are looked for whose element (i, j) lies there.
_FOLD = """
  const index_t plane = gid / height, h = gid - plane * height;
  for (index_t w = 0; w < width; ++w) {
    $T sum = 0;
    for (index_t i = 0; i < kh; ++i) {
      const index_t above = h + up - i * dh, r = above / sh;
      if (above < 0 || r * sh != above || r >= rows) continue;
      for (index_t j = 0; j < kw; ++j) {
        const index_t before = w + left - j * dw, q = before / sw;
        if (before < 0 || q * sw != before || q >= columns) continue;
        sum += $dy;
      }
    }
    $store
  }
"""


def _numbers(call: Call) -> tuple[int, ...]:
    up, left = call.attr("paddings")[:2]
    return (
        *call.dims("X")[2:], *block_counts(call), *call.attr("kernel_sizes"), *call.attr("strides"), up, left,
        *call.attr("dilations"),
    )  # fmt: skip


@register_kernel("unfold", "dialect")
def unfold(call: Call, context: Context) -> Any:
    """An element of the windows in a row of windows an item."""
    moved, (images, rows, _), numbers = MOVED[ITEMSIZE[call.dtype("X")]], call.dims("Y"), _numbers(call)
    kernel = build(context, f"unfold_{moved}", [Buffer("x", moved), Buffer("y", moved, True)], _NUMBERS, _UNFOLD)
    items = images * rows * numbers[2]

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span("X"), io.span("Y")), numbers, dealt(items))

    return run


@register_kernel("unfold_grad", "dialect")
def unfold_grad(call: Call, context: Context) -> Any:
    """A row of X's gradient an item."""
    dtype, dims, numbers = call.dtype("Y@GRAD"), call.dims("X@GRAD"), _numbers(call)
    words = {
        "T": ctype(context, compute_dtype(dtype)),
        "dy": load(dtype, "dy[(((plane * kh + i) * kw + j) * rows + r) * columns + q]"),
        "store": store(context, dtype, "dx[gid * width + w]", "sum"),
    }
    buffers = [Buffer("dy", dtype), Buffer("dx", dtype, True)]
    kernel = build(context, f"unfold_grad_{dtype}", buffers, _NUMBERS, _FOLD, words)
    items = dims[0] * dims[1] * dims[2]

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span("Y@GRAD"), io.span("X@GRAD")), numbers, dealt(items))

    return run
