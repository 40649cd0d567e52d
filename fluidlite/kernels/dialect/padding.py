"""pad, pad2d and pad_constant_like, with gradients."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import ITEMSIZE, Call, Context, box_of, compute_dtype, register_kernel

from .boxes import cut, paste
from .source import MOVED, Buffer, build, ctype, dealt, load, store


@register_kernel("pad", "dialect")
def pad(call: Call, context: Context) -> Any:
    """Out = X with ``pad_value`` around it."""
    return paste(call, context, call.attr("pad_value"))


@register_kernel("pad_grad", "dialect")
def pad_grad(call: Call, context: Context) -> Any:
    """X@GRAD = the part of Out@GRAD where X lies."""
    return cut(call, context)


@register_kernel("pad_constant_like", "dialect")
def pad_constant_like(call: Call, context: Context) -> Any:
    """Out = Y with ``pad_value`` behind it."""
    return paste(call, context, call.attr("pad_value"))


@register_kernel("pad_constant_like_grad", "dialect")
def pad_constant_like_grad(call: Call, context: Context) -> Any:
    """Y@GRAD = the part of Out@GRAD where Y lies."""
    return cut(call, context)


_COLUMNS = {"reflect": "q < left ? left - q : width - 2 - (q - left)", "edge": "q < left ? 0 : width - 1"}
"""Where column ``q`` of the border, those of the left counted first, comes from."""
_LINES = {
    "reflect": "r < 0 ? -r : r < height ? r : 2 * (height - 1) - r",
    "edge": "r < 0 ? 0 : r < height ? r : height - 1",
}
"""Where row ``r`` comes from, counted from the first of X."""

# A row an item: its middle, then its borders.
_PAD = """
  const index_t rows = height + above + below, image = gid / rows, r = gid - image * rows - above, y = $line;
  const index_t from = (image * height + y) * width * inner, size = width * inner;
  const index_t to = gid * (width + left + right) * inner, middle = to + left * inner;
  for (index_t i = 0; i < size; ++i) out[middle + i] = x[from + i];
  for (index_t q = 0; q < left + right; ++q) {
    const index_t column = from + ($column) * inner, border = to + (q < left ? q : q + width) * inner;
    for (index_t c = 0; c < inner; ++c) out[border + c] = x[column + c];
  }
"""


@register_kernel("pad2d", "dialect")
def pad2d(call: Call, context: Context) -> Any:
    """Out = the images of X with a border: ``pad_value``, or what the images hold."""
    mode = call.attr("mode")
    if mode == "constant":
        return paste(call, context, call.attr("pad_value"))
    moved = MOVED[ITEMSIZE[call.dtype("X")]]
    kernel = build(
        context, f"pad2d_{mode}_{moved}", [Buffer("x", moved), Buffer("out", moved, True)], _NUMBERS, _PAD,
        {"line": _LINES[mode], "column": _COLUMNS[mode]},
    )  # fmt: skip
    rows, numbers = _sizes(call, "X", "Out")
    items = rows // max(numbers[0], 1) * (numbers[0] + numbers[3] + numbers[4])
    return lambda context, io: kernel(context, items, (io.span("X"), io.span("Out")), numbers, dealt(items))


_NUMBERS = ["height", "width", "inner", "above", "below", "left", "right"]


def _sizes(call: Call, small: str, padded: str) -> tuple[int, tuple[int, ...]]:
    """Return the rows of all images without their borders, and the kernels' numbers."""
    x, out, a = call.dims(small), call.dims(padded), 2 if call.attr("data_format") == "NCHW" else 1
    above, left = box_of(call).starts[a : a + 2]
    below, right = out[a] - x[a] - above, out[a + 1] - x[a + 1] - left
    return prod(x[: a + 1]), (x[a], x[a + 1], prod(x[a + 2 :]), above, below, left, right)


RUN = 512
"""Elements of a row that are added up at once."""

# Where row y went: to a run of padded rows, and by reflection to up to two more.
_REFLECTED = """const index_t y_lo = y + above, y_hi = y_lo + 1;
  const index_t y_1 = y >= 1 && y <= above ? above - y : -1;
  const index_t y_2 = y <= height - 2 && y >= height - 1 - below ? 2 * (height - 1) - y + above : -1;"""
_REPEATED = """const index_t y_lo = y == 0 ? 0 : y + above, y_1 = -1, y_2 = -1;
  const index_t y_hi = y == height - 1 ? height + above + below : y + above + 1;"""
_ROWS = {"reflect": _REFLECTED, "edge": _REPEATED}

_FOLD = """
  const index_t image = gid / height, y = gid - image * height, size = width * inner;
  $rows
  for (index_t from = 0; from < size; from += $run) {
    const int count = size - from < $run ? (int)(size - from) : $run;
    $T total[$run];
    for (int v = 0; v < count; ++v) total[v] = 0;
    for (index_t p = -2; p < y_hi - y_lo; ++p) {
      const index_t row = p == -2 ? y_1 : p == -1 ? y_2 : y_lo + p;
      if (row < 0) continue;
      const index_t line = (image * (height + above + below) + row) * (width + left + right) * inner;
      const index_t middle = line + left * inner + from;
      for (int v = 0; v < count; ++v) total[v] += $middle;
      for (index_t q = 0; q < left + right; ++q) {
        const index_t column = line + (q < left ? q : q + width) * inner, to = ($column) * inner - from;
        const index_t c0 = to < 0 ? -to : 0, c1 = to + inner < count ? inner : count - to;
        for (index_t c = c0; c < c1; ++c) total[to + c] += $border;
      }
    }
    for (int v = 0; v < count; ++v) { $store }
  }
"""


@register_kernel("pad2d_grad", "dialect")
def pad2d_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD inside, and what the border repeats gets the border's, too. An item makes a row."""
    mode = call.attr("mode")
    if mode == "constant":
        return cut(call, context)
    dtype = call.dtype("X@GRAD")
    kernel = build(
        context, f"pad2d_grad_{mode}_{dtype}", [Buffer("dout", dtype), Buffer("grad", dtype, True)],
        _NUMBERS, _FOLD,
        {
            "T": ctype(context, compute_dtype(dtype)), "run": str(RUN), "rows": _ROWS[mode], "column": _COLUMNS[mode],
            "middle": load(dtype, "dout[middle + v]"), "border": load(dtype, "dout[column + c]"),
            "store": store(context, dtype, "grad[gid * size + from + v]", "total[v]"),
        },
    )  # fmt: skip
    items, numbers = _sizes(call, "X@GRAD", "Out@GRAD")
    return lambda context, io: kernel(context, items, (io.span("Out@GRAD"), io.span("X@GRAD")), numbers, dealt(items))
