"""concat and its gradient, split."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from fluidlite.plugin import IO, Call, Context, Parts, parts_of, register_kernel

from .common import numpy_style


@register_kernel("concat", "array")
def concat(call: Call, context: Context) -> Any:
    """The inputs one after another along the axis."""
    xp, axis = context.xp, parts_of(call).axis
    if numpy_style(context):

        def run_into(context: Context, io: IO) -> None:
            xp.concatenate(io.arrays("X"), axis, io.array("Out"))

        return run_into

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = xp.concat(io.arrays("X"), axis=axis)

    return run


def _divide(parts: Parts) -> Any:
    """Copy each part out of the whole."""
    before = (slice(None),) * parts.axis
    ends = accumulate(parts.sizes)
    windows = [(*before, slice(end - size, end), ...) for size, end in zip(parts.sizes, ends, strict=True)]

    def run(context: Context, io: IO) -> None:
        whole = io.array(parts.whole)
        for i, window in enumerate(windows):
            io.array(parts.parts, i)[...] = whole[window]

    return run


@register_kernel("concat_grad", "array")
def concat_grad(call: Call, context: Context) -> Any:
    """X@GRAD[i] = the part of Out@GRAD that came from X[i]."""
    return _divide(parts_of(call))


@register_kernel("split", "array")
def split(call: Call, context: Context) -> Any:
    """The reverse of concat."""
    return _divide(parts_of(call))
