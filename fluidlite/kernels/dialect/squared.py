"""l1_norm, squared_l2_norm and clip_by_norm, on the reductions of the framework."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, compute_dtype, register_kernel

from .reduce import scratch
from .reducing import reducer
from .source import Buffer, build, ctype, function, load, part, store

_ROOM = 256
"""Bytes for one number, so that what follows it is aligned."""


def _norm(call: Call, context: Context, how: str) -> Any:
    dims = call.dims("X")
    made = reducer(context, how, call.dtype("X"), call.dtype("Out"), dims, range(len(dims)))

    def run(context: Context, io: IO) -> None:
        made.run(context, io.span("X"), io.span("Out"), scratch(io))

    run.workspace = made.workspace  # type: ignore[attr-defined]
    return run


@register_kernel("l1_norm", "dialect")
def l1_norm(call: Call, context: Context) -> Any:
    """Out = the sum of |X|."""
    return _norm(call, context, "sizes")


@register_kernel("squared_l2_norm", "dialect")
def squared_l2_norm(call: Call, context: Context) -> Any:
    """Out = the sum of X X."""
    return _norm(call, context, "squares")


_FACTOR = """
  const $T norm = $sqrt(factor[0]);
  factor[0] = norm <= most ? 1 : most / norm;
"""


@register_kernel("clip_by_norm", "dialect", inplace=True)
def clip_by_norm(call: Call, context: Context) -> Any:
    """Out = X, times max_norm / norm(X) if that is below 1."""
    dims, dtype = call.dims("X"), call.dtype("X")
    wide, items = compute_dtype(dtype), prod(dims)
    made = reducer(context, "squares", dtype, wide, dims, range(len(dims)))
    find = build(
        context, f"clip_by_norm_factor_{wide}", [Buffer("factor", wide, True)], [("most", wide)], _FACTOR,
        {"T": ctype(context, wide), "sqrt": function(context, "sqrt", dtype)},
    )  # fmt: skip
    scale = build(
        context, f"clip_by_norm_{dtype}", [Buffer("x", dtype), Buffer("factor", wide), Buffer("out", dtype, True)], [],
        "  " + store(context, dtype, "out[gid]", f"{load(dtype, 'x[gid]')} * factor[0]"), aliased=True,
    )  # fmt: skip
    numbers = (call.attr("max_norm"),)

    def run(context: Context, io: IO) -> None:
        assert io.workspace is not None
        factor = io.workspace.span()
        made.run(context, io.span("X"), factor, part(factor, _ROOM))
        find(context, 1, (factor,), numbers)
        scale(context, items, (io.span("X"), factor, io.span("Out")), ())

    run.workspace = _ROOM + max(made.workspace, ITEMSIZE[wide])  # type: ignore[attr-defined]
    return run
