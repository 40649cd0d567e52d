"""bilinear_tensor_product with gradients: an item makes four rows, 16 columns side by side, as a GEMM does.

Rows beyond the last are computed as the last, and not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .reduce import scratch
from .reducing import reducer
from .source import HEAVY, LANES, Buffer, build, ctype, load, store

ROWS = 4

_START = """
  index_t row[$rows];
  for (int r = 0; r < $rows; ++r) row[r] = b0 + r < count ? b0 + r : count - 1;
"""

_FORWARD = """
  const index_t block = gid / size, i = gid - block * size, b0 = block * $rows;
  $start
  $T total[$rows];
  for (int r = 0; r < $rows; ++r) total[r] = 0;
  for (index_t n0 = 0; n0 < n; n0 += $lanes) {
    const int width = n - n0 < $lanes ? (int)(n - n0) : $lanes;
    $product
    for (int r = 0; r < $rows; ++r)
      for (int v = 0; v < width; ++v) total[r] += acc[r][v] * $y;
  }
  for (int r = 0; r < $rows && b0 + r < count; ++r) { const $T value = total[r]$bias; $put }
"""

_PRODUCT = """$T acc[$rows][$lanes];
    for (int r = 0; r < $rows; ++r)
      for (int v = 0; v < $lanes; ++v) acc[r][v] = 0;
    for (index_t k = 0; k < m; ++k) {
      const index_t at = (i * m + k) * n + n0;
      if (width == $lanes) {
        for (int r = 0; r < $rows; ++r) { const $T a = $x; for (int v = 0; v < $lanes; ++v) acc[r][v] += a * $w; }
      } else {
        for (int r = 0; r < $rows; ++r) { const $T a = $x; for (int v = 0; v < width; ++v) acc[r][v] += a * $w; }
      }
    }"""
"""Rows of X times columns n0, ... of Weight[i]."""

_GRAD_X = """
  const index_t block = gid / m, k = gid - block * m, b0 = block * $rows;
  $start
  $T total[$rows];
  for (int r = 0; r < $rows; ++r) total[r] = 0;
  for (index_t i = 0; i < size; ++i) {
    const index_t first = (i * m + k) * n;
    $T acc[$rows][$lanes];
    for (int r = 0; r < $rows; ++r)
      for (int v = 0; v < $lanes; ++v) acc[r][v] = 0;
    for (index_t n0 = 0; n0 < n; n0 += $lanes) {
      const index_t at = first + n0;
      if (n - n0 >= $lanes) {
        for (int r = 0; r < $rows; ++r) for (int v = 0; v < $lanes; ++v) acc[r][v] += $w * $y;
      } else {
        for (int r = 0; r < $rows; ++r) for (int v = 0; v < (int)(n - n0); ++v) acc[r][v] += $w * $y;
      }
    }
    for (int r = 0; r < $rows; ++r) {
      $T sum = 0;
      for (int v = 0; v < $lanes; ++v) sum += acc[r][v];
      total[r] += sum * $dout;
    }
  }
  for (int r = 0; r < $rows && b0 + r < count; ++r) { $put }
"""

_GRAD_Y = """
  const index_t chunks = (n + $lanes - 1) / $lanes, block = gid / chunks, b0 = block * $rows;
  const index_t n0 = (gid - block * chunks) * $lanes;
  const int width = n - n0 < $lanes ? (int)(n - n0) : $lanes;
  $start
  $T total[$rows][$lanes];
  for (int r = 0; r < $rows; ++r)
    for (int v = 0; v < $lanes; ++v) total[r][v] = 0;
  for (index_t i = 0; i < size; ++i) {
    $product
    for (int r = 0; r < $rows; ++r) {
      const $T g = $dout;
      for (int v = 0; v < $lanes; ++v) total[r][v] += g * acc[r][v];
    }
  }
  for (int r = 0; r < $rows && b0 + r < count; ++r)
    for (int v = 0; v < width; ++v) { $put }
"""

_GRAD_WEIGHT = """
  const index_t chunks = (n + $lanes - 1) / $lanes, blocks = (m + $rows - 1) / $rows;
  const index_t i = gid / (blocks * chunks), rest = gid - i * blocks * chunks, block = rest / chunks;
  const index_t k0 = block * $rows, n0 = (rest - block * chunks) * $lanes;
  const int width = n - n0 < $lanes ? (int)(n - n0) : $lanes;
  index_t column[$rows];
  for (int r = 0; r < $rows; ++r) column[r] = k0 + r < m ? k0 + r : m - 1;
  $T acc[$rows][$lanes];
  for (int r = 0; r < $rows; ++r)
    for (int v = 0; v < $lanes; ++v) acc[r][v] = 0;
  for (index_t b = 0; b < count; ++b) {
    const $T g = $dout_b;
    if (width == $lanes) {
      for (int r = 0; r < $rows; ++r) { const $T a = g * $x_b; for (int v = 0; v < $lanes; ++v) acc[r][v] += a * $y_b; }
    } else {
      for (int r = 0; r < $rows; ++r) { const $T a = g * $x_b; for (int v = 0; v < width; ++v) acc[r][v] += a * $y_b; }
    }
  }
  for (int r = 0; r < $rows && k0 + r < m; ++r)
    for (int v = 0; v < width; ++v) { $put }
"""

_NUMBERS = ["count", "m", "n", "size"]


def _words(context: Context, dtype: str) -> dict[str, str]:
    words = {
        "T": ctype(context, compute_dtype(dtype)), "rows": str(ROWS), "lanes": str(LANES),
        "x": load(dtype, "x[row[r] * m + k]"), "y": load(dtype, "y[row[r] * n + n0 + v]"),
        "w": load(dtype, "w[at + v]"), "dout": load(dtype, "dout[row[r] * size + i]"),
        "x_b": load(dtype, "x[b * m + column[r]]"), "y_b": load(dtype, "y[b * n + n0 + v]"),
        "dout_b": load(dtype, "dout[b * size + i]"),
    }  # fmt: skip
    for name, text in (("start", _START), ("product", _PRODUCT)):
        words[name] = _filled(text, words)
    return words


def _filled(text: str, words: Mapping[str, str]) -> str:
    for name in sorted(words, key=len, reverse=True):  # "$x_b" before "$x"
        text = text.replace("$" + name, words[name])
    return text


def _sizes(call: Call) -> tuple[int, int, int, int]:
    size, m, n = call.dims("Weight")
    return call.dims("X")[0], m, n, size


@register_kernel("bilinear_tensor_product", "dialect")
def bilinear(call: Call, context: Context) -> Any:
    """Out[:, i] = the products of the rows of X Weight[i] and Y, + Bias[i]."""
    dtype, numbers, biased = call.dtype("X"), _sizes(call), call.has("Bias")
    count, size = numbers[0], numbers[3]
    inputs = [("x", "X"), ("y", "Y"), ("w", "Weight"), *([("bias", "Bias")] if biased else [])]
    words = {
        **_words(context, dtype), "bias": f" + {load(dtype, 'bias[i]')}" if biased else "",
        "put": store(context, dtype, "out[(b0 + r) * size + i]", "value"),
    }  # fmt: skip
    buffers = [*(Buffer(name, dtype) for name, _ in inputs), Buffer("out", dtype, True)]
    kernel = build(context, f"bilinear{'_bias' * biased}_{dtype}", buffers, _NUMBERS, _FORWARD, words)
    items = -(-count // ROWS) * size

    def run(context: Context, io: IO) -> None:
        kernel(context, items, [*(io.span(slot) for _, slot in inputs), io.span("Out")], numbers, HEAVY)

    return run


@register_kernel("bilinear_tensor_product_grad", "dialect")
def bilinear_grad(call: Call, context: Context) -> Any:
    """One launch for each gradient."""
    dtype, numbers = call.dtype("X"), _sizes(call)
    count, m, n, size = numbers
    blocks, chunks = -(-count // ROWS), -(-n // LANES)
    made = {
        "X": (_GRAD_X, blocks * m, "out[(b0 + r) * m + k]", "total[r]"),
        "Y": (_GRAD_Y, blocks * chunks, "out[(b0 + r) * n + n0 + v]", "total[r][v]"),
        "Weight": (_GRAD_WEIGHT, size * -(-m // ROWS) * chunks, "out[(i * m + k0 + r) * n + n0 + v]", "acc[r][v]"),
    }
    inputs = [("x", "X"), ("y", "Y"), ("w", "Weight"), ("dout", "Out@GRAD")]
    buffers = [*(Buffer(name, dtype) for name, _ in inputs), Buffer("out", dtype, True)]
    steps = []
    for slot, (text, items, element, value) in made.items():
        if call.has(slot + "@GRAD"):
            words = {**_words(context, dtype), "put": store(context, dtype, element, value)}
            kernel = build(context, f"bilinear_grad_{slot.lower()}_{dtype}", buffers, _NUMBERS, text, words)
            steps.append((kernel, items, slot + "@GRAD"))
    bias = reducer(context, "sum", dtype, dtype, (count, size), (0,)) if call.has("Bias@GRAD") else None

    def run(context: Context, io: IO) -> None:
        given = [io.span(slot) for _, slot in inputs]
        for kernel, items, slot in steps:
            if items:
                kernel(context, items, [*given, io.span(slot)], numbers, HEAVY)
        if bias is not None:
            bias.run(context, io.span("Out@GRAD"), io.span("Bias@GRAD"), scratch(io))

    run.workspace = bias.workspace if bias is not None else 0  # type: ignore[attr-defined]
    return run
