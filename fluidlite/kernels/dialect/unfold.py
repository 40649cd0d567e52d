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

RUN = 512
"""Elements of a row of the image that are added up at once."""

# A row of the image an item: element (i, j) of the windows that lie there is added for all of them.
_FOLD = """
  const index_t plane = gid / height, h = gid - plane * height;
  for (index_t from = 0; from < width; from += $run) {
    const int count = width - from < $run ? (int)(width - from) : $run;
    $T sum[$run];
    for (int v = 0; v < count; ++v) sum[v] = 0;
    for (index_t i = 0; i < kh; ++i) {
      const index_t above = h + up - i * dh, r = above / sh;
      if (above < 0 || r * sh != above || r >= rows) continue;
      for (index_t j = 0; j < kw; ++j) {
        const index_t shift = j * dw - left - from, line = (((plane * kh + i) * kw + j) * rows + r) * columns;
        const index_t q0 = shift >= 0 ? 0 : ($step - 1 - shift) / $step;
        index_t q1 = count - 1 - shift < 0 ? 0 : (count - 1 - shift) / $step + 1;
        q1 = q1 < columns ? q1 : columns;
        for (index_t q = q0; q < q1; ++q) sum[q * $step + shift] += $dy;
      }
    }
    for (int v = 0; v < count; ++v) { $store }
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
    step = "1" if call.attr("strides")[1] == 1 else "sw"
    words = {
        "T": ctype(context, compute_dtype(dtype)),
        "dy": load(dtype, "dy[line + q]"),
        "store": store(context, dtype, "dx[gid * width + from + v]", "sum[v]"),
        "run": str(RUN),
        "step": step,
    }
    buffers = [Buffer("dy", dtype), Buffer("dx", dtype, True)]
    kernel = build(context, f"unfold_grad_{step}_{dtype}", buffers, _NUMBERS, _FOLD, words)
    items = dims[0] * dims[1] * dims[2]

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span("Y@GRAD"), io.span("X@GRAD")), numbers, dealt(items))

    return run
