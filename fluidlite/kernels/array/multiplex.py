"""multiplex with its gradient."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate


@register_kernel("multiplex", "array", indexes=True)
def multiplex(call: Call, context: Context) -> Any:
    """Out[i] = X[Ids[i]][i]."""
    xp, count = context.xp, call.count("X")
    column = (-1,) + (1,) * (len(call.dims("Out")) - 1)
    fast = immediate(context)

    def run(context: Context, io: IO) -> None:
        ids = context.check_index(xp.reshape(io.array("Ids"), (-1,)), count, io)
        out = io.array("Out")
        if fast:
            for k in range(count):
                rows = (ids == k).nonzero()[0]
                out[rows] = io.array("X", k)[rows]
            return
        value = io.array("X")
        for k in range(1, count):
            value = xp.where(xp.reshape(ids == k, column), io.array("X", k), value)
        out[...] = value

    return run


@register_kernel("multiplex_grad", "array", indexes=True)
def multiplex_grad(call: Call, context: Context) -> Any:
    """X@GRAD[k][i] = Out@GRAD[i] where Ids[i] is k, else 0."""
    xp, count = context.xp, call.count("X")
    column = (-1,) + (1,) * (len(call.dims("Out@GRAD")) - 1)
    fast = immediate(context)

    def run(context: Context, io: IO) -> None:
        ids = context.check_index(xp.reshape(io.array("Ids"), (-1,)), count, io)
        dout = io.array("Out@GRAD")
        for k in range(count):
            grad = io.array("X@GRAD", k)
            if fast:
                rows = (ids == k).nonzero()[0]
                grad[...] = 0
                grad[rows] = dout[rows]
            else:
                grad[...] = xp.where(xp.reshape(ids == k, column), dout, xp.zeros_like(dout))

    return run
