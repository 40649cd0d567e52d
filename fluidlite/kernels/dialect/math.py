"""Implementations of the functors on the dialect capability."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, maxout_functor, maxout_grad_functor

from .reducing import reducer
from .source import Buffer, build, ctype, load, store


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


_GRAD = """
  const index_t group = gid / space, at = group * groups * space + gid - group * space;
  const $T best = $out;
  int open = 1;
  for (index_t g = 0; g < groups; ++g) {
    const $T y = $x;
    const int chosen = open && (y == best || (y != y && best != best));
    open &= !chosen;
    $store
  }
"""


@maxout_grad_functor.implement("dialect")
def maxout_grad(context: Context, call: Call) -> Any:
    """The gradient goes to the first channel of each group that equals the greatest."""
    dtype = call.dtype("X")
    kind = ctype(context, compute_dtype(dtype))
    value = f"chosen ? {load(dtype, 'dout[gid]')} : ({kind})0"
    kernel = build(
        context, f"maxout_grad_{dtype}",
        [Buffer("x", dtype), Buffer("out", dtype), Buffer("dout", dtype), Buffer("dx", dtype, True)],
        ["groups", "space"], _GRAD,
        {"T": kind, "out": load(dtype, "out[gid]"), "x": load(dtype, "x[at + g * space]"),
         "store": store(context, dtype, "dx[at + g * space]", value)},
    )  # fmt: skip
    outer, groups, space = _grouped(call)

    def run(context: Context, io: IO) -> None:
        spans = (io.span("X"), io.span("Out"), io.span("Out@GRAD"), io.span("X@GRAD"))
        kernel(context, outer * space, spans, (groups, space))

    return run
