"""cross."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .source import Buffer, build, ctype, load, store

# A vector an item: its parts lie inner elements apart.
_CROSS = """
  const index_t outer = gid / inner, at = outer * 2 * inner + gid;
  const $T a0 = $x0, a1 = $x1, a2 = $x2, b0 = $y0, b1 = $y1, b2 = $y2;
  $store0 $store1 $store2
"""
_PARTS = ("at", "at + inner", "at + 2 * inner")


@register_kernel("cross", "dialect")
def cross(call: Call, context: Context) -> Any:
    """A vector an item."""
    dims, dtype = call.dims("X"), call.dtype("X")
    axis = call.attr("dim") if call.attr("dim") < len(dims) else dims.index(3)
    inner = prod(dims[axis % len(dims) + 1 :])
    words = {"T": ctype(context, compute_dtype(dtype))}
    for i, part in enumerate(_PARTS):
        j, k = (i + 1) % 3, (i + 2) % 3
        words |= {f"x{i}": load(dtype, f"x[{part}]"), f"y{i}": load(dtype, f"y[{part}]")}
        words[f"store{i}"] = store(context, dtype, f"out[{part}]", f"a{j} * b{k} - a{k} * b{j}")
    buffers = [Buffer("x", dtype), Buffer("y", dtype), Buffer("out", dtype, True)]
    kernel = build(context, f"cross_{dtype}", buffers, ["inner"], _CROSS, words)
    items = prod(dims) // 3

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span("X"), io.span("Y"), io.span("Out")), (inner,))

    return run
