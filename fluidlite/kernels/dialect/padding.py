"""pad, pad2d and pad_constant_like, with gradients."""

from __future__ import annotations

from math import prod
from string import Template
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, box_of, compute_dtype, register_kernel

from .boxes import cut, paste
from .source import Buffer, build, ctype, dealt, load, part, store
from .strided import mover, steps_of


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


def _image_axis(call: Call) -> int:
    return 2 if call.attr("data_format") == "NCHW" else 1


def _regions(n: int, before: int, after: int, mode: str) -> list[tuple[int, int, int, int]]:
    """Return (start in the output, size, start in the input, step there) of an axis and of its two borders."""
    step = -1 if mode == "reflect" else 0
    found = [
        (0, before, before if mode == "reflect" else 0, step),
        (before, n, 0, 1),
        (before + n, after, n - 2 if mode == "reflect" else n - 1, step),
    ]
    return [region for region in found if region[1]]


@register_kernel("pad2d", "dialect")
def pad2d(call: Call, context: Context) -> Any:
    """Out = the images of X with a border: ``pad_value``, or nine moves of what they hold."""
    mode = call.attr("mode")
    if mode == "constant":
        return paste(call, context, call.attr("pad_value"))
    x, out, dtype, a = call.dims("X"), call.dims("Out"), call.dtype("X"), _image_axis(call)
    top, left = box_of(call).starts[a : a + 2]
    steps, own = steps_of(x), steps_of(out)
    width = ITEMSIZE[dtype]
    moves = []
    for to_row, height, row, down in _regions(x[a], top, out[a] - x[a] - top, mode):
        for to_column, length, column, right in _regions(x[a + 1], left, out[a + 1] - x[a + 1] - left, mode):
            dims = (*x[:a], height, length, *x[a + 2 :])
            sources = (*steps[:a], down * steps[a], right * steps[a + 1], *steps[a + 2 :])
            source = (row * steps[a] + column * steps[a + 1]) * width
            target = (to_row * own[a] + to_column * own[a + 1]) * width
            moves.append((source, target, mover(context, dtype, dtype, dims, sources, own)))

    def run(context: Context, io: IO) -> None:
        given, made = io.span("X"), io.span("Out")
        for source, target, move in moves:
            move(context, part(given, source), part(made, target))

    return run


# Where element i of an axis of n went: to a run of the padded axis, and by reflection to up to two more places.
_REFLECTED = """index_t $lo = $i + $before, $hi = $lo + 1, ${i}_1 = -1, ${i}_2 = -1;
    if ($i >= 1 && $i <= $before) ${i}_1 = $before - $i;
    if ($i <= $n - 2 && $i >= $n - 1 - $after) ${i}_2 = 2 * ($n - 1) - $i + $before;"""
_REPEATED = """const index_t $lo = $i == 0 ? 0 : $i + $before, ${i}_1 = -1, ${i}_2 = -1;
    const index_t $hi = $i == $n - 1 ? $n + $before + $after : $i + $before + 1;"""

_FOLD = """
  const index_t image = gid / height, y = gid - image * height;
  $rows
  for (index_t x = 0; x < width; ++x) {
    $columns
    for (index_t c = 0; c < inner; ++c) {
      $T total = 0;
      for (index_t p = -2; p < y_hi - y_lo; ++p) {
        const index_t row = p == -2 ? y_1 : p == -1 ? y_2 : y_lo + p;
        if (row < 0) continue;
        const index_t line = (image * (height + above + below) + row) * (width + left + right);
        for (index_t q = -2; q < x_hi - x_lo; ++q) {
          const index_t column = q == -2 ? x_1 : q == -1 ? x_2 : x_lo + q;
          if (column >= 0) total += $dout;
        }
      }
      $store
    }
  }
"""


@register_kernel("pad2d_grad", "dialect")
def pad2d_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD inside, and what the border repeats gets the border's, too. An item makes a row."""
    mode = call.attr("mode")
    if mode == "constant":
        return cut(call, context)
    x, out, dtype, a = call.dims("X@GRAD"), call.dims("Out@GRAD"), call.dtype("X@GRAD"), _image_axis(call)
    above, left = box_of(call).starts[a : a + 2]
    below, right = out[a] - x[a] - above, out[a + 1] - x[a + 1] - left
    kernel = build(
        context, f"pad2d_grad_{mode}_{dtype}", [Buffer("dout", dtype), Buffer("grad", dtype, True)],
        ["height", "width", "inner", "above", "below", "left", "right"], _FOLD,
        {
            "T": ctype(context, compute_dtype(dtype)), "dout": load(dtype, "dout[(line + column) * inner + c]"),
            "rows": _spots(mode, "y", "height", "above", "below"),
            "columns": _spots(mode, "x", "width", "left", "right"),
            "store": store(context, dtype, "grad[(gid * width + x) * inner + c]", "total"),
        },
    )  # fmt: skip
    items, inner = prod(x[: a + 1]), prod(x[a + 2 :])
    numbers = (x[a], x[a + 1], inner, above, below, left, right)
    return lambda context, io: kernel(context, items, (io.span("Out@GRAD"), io.span("X@GRAD")), numbers, dealt(items))


def _spots(mode: str, i: str, n: str, before: str, after: str) -> str:
    text = _REFLECTED if mode == "reflect" else _REPEATED
    words = {"i": i, "lo": f"{i}_lo", "hi": f"{i}_hi", "n": n, "before": before, "after": after}
    return Template(text).substitute(words)
