"""Implementations of the functors on the array capability."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, maxout_functor, maxout_grad_functor

from .common import storer


def _grouped(call: Call) -> tuple[int, ...]:
    """X's dims with the channels split into (outputs, group)."""
    images, channels, *space = call.dims("X")
    groups = call.attr("groups")
    return (images, channels // groups, groups, *space)


@maxout_functor.implement("array")
def maxout(context: Context, call: Call) -> Any:
    """The greatest along the group's axis."""
    xp, dims = context.xp, _grouped(call)

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = xp.max(xp.reshape(io.array("X"), dims), axis=2)

    return run


@maxout_grad_functor.implement("array")
def maxout_grad(context: Context, call: Call) -> Any:
    """The gradient goes to the first channel of each group that equals the greatest."""
    xp, dims, store = context.xp, _grouped(call), storer(context)
    kept, column = (*dims[:2], 1, *dims[3:]), (1, 1, -1) + (1,) * (len(dims) - 3)

    def run(context: Context, io: IO) -> None:
        first = xp.reshape(xp.argmax(xp.reshape(io.array("X"), dims), axis=2), kept)
        chosen = xp.reshape(xp.arange(dims[2], dtype=first.dtype), column) == first
        dout = xp.reshape(io.array("Out@GRAD"), kept)
        store(io.array("X@GRAD"), xp.where(chosen, dout, xp.zeros_like(dout)))

    return run
