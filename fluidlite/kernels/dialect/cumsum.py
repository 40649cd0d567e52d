"""cumsum and its gradient: an item walks along the axis, over 16 neighbours where the axis is not the last.

Where it is, an item walks along four lines side by side: each sum waits for the one before, but not for other lines'.
"""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .source import LANES, Buffer, build, ctype, dealt, load, store, wrapping

_WALK = """
  const index_t chunks = (inner + $lanes - 1) / $lanes;
  const index_t row = gid / chunks, j = (gid - row * chunks) * $lanes;
  const int width = inner - j < $lanes ? (int)(inner - j) : $lanes;
  const index_t first = row * n * inner + j + $start, step = $step;
  $T sum[$lanes];
  for (int v = 0; v < $lanes; ++v) sum[v] = 0;
  if (width == $lanes) {
    for (index_t i = 0; i < n; ++i) { const index_t at = first + i * step; for (int v = 0; v < $lanes; ++v) { $one } }
  } else {
    for (index_t i = 0; i < n; ++i) { const index_t at = first + i * step; for (int v = 0; v < width; ++v) { $one } }
  }
"""

_LINES = 4
_ALONG = """
  const index_t first = gid * $lanes * n + $start, step = $step;
  $T sum[$lanes];
  for (int v = 0; v < $lanes; ++v) sum[v] = 0;
  if ((gid + 1) * $lanes <= rows) {
    for (index_t i = 0; i < n; ++i) {
      for (int v = 0; v < $lanes; ++v) { const index_t at = first + i * step + v * n; $one }
    }
  } else {
    for (index_t row = gid * $lanes; row < rows; ++row) {
      const int v = 0;
      sum[v] = 0;
      for (index_t i = 0; i < n; ++i) { const index_t at = row * n + $start + i * step; $one }
    }
  }
"""


def _sums(call: Call, context: Context, given: str, made: str, reverse: bool) -> Any:
    dims, dtype = call.dims(made), call.dtype(given)
    if call.attr("flatten") or not dims:
        dims = (prod(dims),)
    axis = 0 if len(dims) == 1 else call.attr("axis") % len(dims)
    n, inner = dims[axis], prod(dims[axis + 1 :])
    kind, exclusive = ctype(context, compute_dtype(dtype)), call.attr("exclusive")
    along, rows = inner == 1, prod(dims[:axis])
    at = "at" if along else "at + v"
    put = store(context, dtype, f"out[{at}]", "sum[v]")
    total = wrapping(context, compute_dtype(dtype), "+").format("sum[v]", load(dtype, f"x[{at}]"))
    add = f"sum[v] = {total};"
    lanes, unit = (_LINES, "1") if along else (LANES, "inner")
    kernel = build(
        context, f"cumsum{'_exclusive' * exclusive}{'_reverse' * reverse}{'_along' * along}_{dtype}",
        [Buffer("x", dtype), Buffer("out", dtype, True)], ["n", "rows" if along else "inner"],
        _ALONG if along else _WALK,
        {
            "T": kind, "lanes": str(lanes), "start": f"(n - 1) * {unit}" if reverse else "0",
            "step": f"-{unit}" if reverse else unit, "one": put + add if exclusive else add + put,
        },
    )  # fmt: skip
    items = -(-rows // lanes) if along else rows * -(-inner // lanes)
    numbers = (n, rows if along else inner)

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span(given), io.span(made)), numbers, dealt(items))

    return run


@register_kernel("cumsum", "dialect")
def cumsum(call: Call, context: Context) -> Any:
    """Out[i] = X[0] + ... + X[i]."""
    return _sums(call, context, "X", "Out", call.attr("reverse"))


@register_kernel("cumsum_grad", "dialect")
def cumsum_grad(call: Call, context: Context) -> Any:
    """X@GRAD[i] = Out@GRAD[i] + ... + Out@GRAD[-1]."""
    return _sums(call, context, "Out@GRAD", "X@GRAD", not call.attr("reverse"))
