"""isfinite, isinf, isnan of a whole tensor, as reductions."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .reduce import scratch
from .reducing import reducer
from .strided import filler


def _answer(call: Call, context: Context, how: str, otherwise: int) -> Any:
    """Reduce; of no elements, and of integers, the answer is known."""
    dims = call.dims("X")
    if not prod(dims) or "float" not in call.dtype("X"):
        fill = filler(context, "bool", otherwise)
        return lambda context, io: fill(context, io.span("Out"), 1)
    made = reducer(context, how, call.dtype("X"), "bool", dims, range(len(dims)))

    def run(context: Context, io: IO) -> None:
        made.run(context, io.span("X"), io.span("Out"), scratch(io))

    run.workspace = made.workspace  # type: ignore[attr-defined]
    return run


@register_kernel("isfinite", "dialect")
def isfinite(call: Call, context: Context) -> Any:
    """Out = no element is infinite or NaN."""
    return _answer(call, context, "finite", 1)


@register_kernel("isinf", "dialect")
def isinf(call: Call, context: Context) -> Any:
    """Out = an element is infinite."""
    return _answer(call, context, "infinite", 0)


@register_kernel("isnan", "dialect")
def isnan(call: Call, context: Context) -> Any:
    """Out = an element is NaN."""
    return _answer(call, context, "nan", 0)
