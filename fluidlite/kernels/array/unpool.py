"""unpool and its gradient."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate

BLOCK = 131072
"""Elements of Out that are worked on at a time, on the host."""


@register_kernel("unpool", "array", indexes=True)
def unpool(call: Call, context: Context) -> Any:
    """Out = 0, and X at the places that Indices name in each plane."""
    xp, dims, out_dims = context.xp, call.dims("X"), call.dims("Out")
    planes, count, size = dims[0] * dims[1], prod(dims[2:]), prod(out_dims[2:])
    put, host = context.array.extra("put_along_axis"), immediate(context)
    step = max(1, BLOCK // size) if host else planes
    starts = xp.arange(step, dtype=xp.int64)[:, None] * size

    def run(context: Context, io: IO) -> None:
        places = context.check_index(xp.reshape(io.array("Indices"), (planes, count)), size, io)
        x, out = xp.reshape(io.array("X"), (planes, count)), xp.reshape(io.array("Out"), (planes, size))
        if host:  # fancy assignment keeps the last of several
            for at in range(0, planes, step):
                part, block = places[at : at + step], out[at : at + step].reshape(-1)
                block.fill(0)
                block[(part + starts[: len(part)]).reshape(-1)] = x[at : at + step].reshape(-1)
            return
        out[...] = 0.0
        if put is not None:
            put(out, xp.astype(places, xp.int64), x, axis=1)
        else:  # the standard has no scatter
            at = xp.arange(size, dtype=places.dtype)[None, :]
            for i in range(count):
                out[...] = xp.where(at == places[:, i : i + 1], x[:, i : i + 1], out)

    return run


@register_kernel("unpool_grad", "array", indexes=True)
def unpool_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD at the places that Indices name in each plane."""
    xp, dims, out_dims = context.xp, call.dims("X@GRAD"), call.dims("Out@GRAD")
    planes, count, size = dims[0] * dims[1], prod(dims[2:]), prod(out_dims[2:])
    step = max(1, BLOCK // size) if immediate(context) else planes
    starts = xp.arange(step, dtype=xp.int64)[:, None] * size

    def run(context: Context, io: IO) -> None:
        places = context.check_index(xp.reshape(io.array("Indices"), (planes, count)), size, io)
        dout, dx = xp.reshape(io.array("Out@GRAD"), (planes, size)), xp.reshape(io.array("X@GRAD"), (planes, count))
        for at in range(0, planes, step):
            part = places[at : at + step, ...]
            index = xp.reshape(part + starts[: part.shape[0], ...], (-1,))
            found = xp.take(xp.reshape(dout[at : at + step, ...], (-1,)), index, axis=0)
            dx[at : at + step, ...] = xp.reshape(found, part.shape)

    return run
