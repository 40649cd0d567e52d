"""Implementations of the functors on the array capability."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, maxout_functor, maxout_grad_functor

from .common import storer


def _grouped(call: Call) -> tuple[tuple[int, ...], int]:
    """X's dims with the channels split into (outputs, group), and the group's axis."""
    x, groups = call.dims("X"), call.attr("groups")
    axis = call.attr("axis") % len(x)
    return (*x[:axis], x[axis] // groups, groups, *x[axis + 1 :]), axis + 1


@maxout_functor.implement("array")
def maxout(context: Context, call: Call) -> Any:
    """The greatest along the group's axis."""
    xp, (dims, axis) = context.xp, _grouped(call)

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = xp.max(xp.reshape(io.array("X"), dims), axis=axis)

    return run


@maxout_grad_functor.implement("array")
def maxout_grad(context: Context, call: Call) -> Any:
    """The gradient goes to the first channel of each group that equals the greatest."""
    xp, (dims, axis), store = context.xp, _grouped(call), storer(context)
    kept, column = (*dims[:axis], 1, *dims[axis + 1 :]), (-1,) + (1,) * (len(dims) - axis - 1)

    def run(context: Context, io: IO) -> None:
        first = xp.reshape(xp.argmax(xp.reshape(io.array("X"), dims), axis=axis), kept)
        chosen = xp.reshape(xp.arange(dims[axis], dtype=first.dtype), column) == first
        dout = xp.reshape(io.array("Out@GRAD"), kept)
        store(io.array("X@GRAD"), xp.where(chosen, dout, xp.zeros_like(dout)))

    return run
