"""Implementations of the functors on the dialect capability."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, maxout_functor, maxout_grad_functor

from .reducing import reducer
from .source import Buffer, build, ctype, dealt, load, store


def _grouped(call: Call) -> tuple[int, int, int]:
    """X's dims as (groups of channels of all images, channels of a group, positions within a channel)."""
    x, groups = call.dims("X"), call.attr("groups")
    axis = call.attr("axis") % len(x)
    return prod(x[: axis + 1]) // groups, groups, prod(x[axis + 1 :])


@maxout_functor.implement("dialect")
def maxout(context: Context, call: Call) -> Any:
    """The greatest along the group's axis."""
    dtype = call.dtype("X")
    made = reducer(context, "max", dtype, dtype, _grouped(call), (1,))

    def run(context: Context, io: IO) -> None:
        made.run(context, io.span("X"), io.span("Out"), io.workspace.span() if io.workspace is not None else None)

    run.workspace = made.workspace  # type: ignore[attr-defined]
    return run


LANES = 256
"""Positions that an item goes through, a channel after the other."""

_GRAD = """
  const index_t chunks = (space + $lanes - 1) / $lanes, group = gid / chunks, from = (gid - group * chunks) * $lanes;
  const int count = space - from < $lanes ? (int)(space - from) : $lanes;
  const index_t place = group * space + from;
  int open[$lanes];
  for (int v = 0; v < count; ++v) open[v] = 1;
  for (index_t g = 0; g < groups; ++g) {
    const index_t at = (group * groups + g) * space + from;
    for (int v = 0; v < count; ++v) {
      const $T best = $out, y = $x, given = $dout;
      const int chosen = open[v] & ((y == best) | ((y != y) & (best != best)));
      open[v] &= !chosen;
      $store
    }
  }
"""


@maxout_grad_functor.implement("dialect")
def maxout_grad(context: Context, call: Call) -> Any:
    """The gradient goes to the first channel of each group that equals the greatest."""
    dtype = call.dtype("X")
    kind = ctype(context, compute_dtype(dtype))
    kernel = build(
        context, f"maxout_grad_{dtype}",
        [Buffer("x", dtype), Buffer("out", dtype), Buffer("dout", dtype), Buffer("dx", dtype, True)],
        ["groups", "space"], _GRAD,
        {"T": kind, "lanes": str(LANES), "out": load(dtype, "out[place + v]"), "x": load(dtype, "x[at + v]"),
         "dout": load(dtype, "dout[place + v]"),
         "store": store(context, dtype, "dx[at + v]", f"chosen ? given : ({kind})0")},
    )  # fmt: skip
    outer, groups, space = _grouped(call)
    items = outer * -(-space // LANES)

    def run(context: Context, io: IO) -> None:
        spans = (io.span("X"), io.span("Out"), io.span("Out@GRAD"), io.span("X@GRAD"))
        kernel(context, items, spans, (groups, space), dealt(items))

    return run
