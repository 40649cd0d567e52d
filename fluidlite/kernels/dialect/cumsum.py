"""cumsum and its gradient: an item walks along the axis, over 16 neighbours where the axis is not the last."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .source import LANES, Buffer, build, ctype, dealt, load, store

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


def _sums(call: Call, context: Context, given: str, made: str, reverse: bool) -> Any:
    dims, dtype = call.dims(made), call.dtype(given)
    if call.attr("flatten") or not dims:
        dims = (prod(dims),)
    axis = 0 if len(dims) == 1 else call.attr("axis") % len(dims)
    n, inner = dims[axis], prod(dims[axis + 1 :])
    kind, exclusive = ctype(context, compute_dtype(dtype)), call.attr("exclusive")
    put = store(context, dtype, "out[at + v]", "sum[v]")
    add = f"sum[v] = sum[v] + {load(dtype, 'x[at + v]')};"
    kernel = build(
        context, f"cumsum{'_exclusive' * exclusive}{'_reverse' * reverse}_{dtype}",
        [Buffer("x", dtype), Buffer("out", dtype, True)], ["n", "inner"], _WALK,
        {
            "T": kind, "lanes": str(LANES), "start": "(n - 1) * inner" if reverse else "0",
            "step": "-inner" if reverse else "inner", "one": put + add if exclusive else add + put,
        },
    )  # fmt: skip
    items = prod(dims[:axis]) * -(-inner // LANES)

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span(given), io.span(made)), (n, inner), dealt(items))

    return run


@register_kernel("cumsum", "dialect")
def cumsum(call: Call, context: Context) -> Any:
    """Out[i] = X[0] + ... + X[i]."""
    return _sums(call, context, "X", "Out", call.attr("reverse"))


@register_kernel("cumsum_grad", "dialect")
def cumsum_grad(call: Call, context: Context) -> Any:
    """X@GRAD[i] = Out@GRAD[i] + ... + Out@GRAD[-1]."""
    return _sums(call, context, "Out@GRAD", "X@GRAD", not call.attr("reverse"))
