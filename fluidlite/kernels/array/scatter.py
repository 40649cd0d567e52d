"""scatter, gather_nd and scatter_nd_add, with gradients."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate
from .rows import last_writers, matrix, nd_find, plain_find, row_adder, take_rows


@register_kernel("scatter", "array", indexes=True)
def scatter(call: Call, context: Context) -> Any:
    """Out = X, its rows Ids replaced by Updates (the last counts), or by the sum of theirs."""
    dims, xp = call.dims("X"), context.xp
    find = plain_find(call, "Ids", dims[0])
    flat = matrix(call, "X", prod(dims[1:]))
    if not call.attr("overwrite"):
        add = row_adder(flat, call.dtype("X"), context)
        return lambda context, io: _add_anew(context, io, find(context, io), add, flat)
    if immediate(context):

        def run_in_order(context: Context, io: IO) -> None:
            out, rows = io.array("Out"), find(context, io)
            out[...] = io.array("X")
            out.reshape(flat)[rows] = io.array("Updates").reshape(rows.shape[0], *flat[1:])

        return run_in_order

    def run(context: Context, io: IO) -> None:
        x, rows = io.array("X"), find(context, io)
        if not rows.shape[0]:
            io.array("Out")[...] = x
            return
        last, named = last_writers(context, rows, dims[0])
        new = xp.take(io.array("Updates"), xp.where(named, last, xp.zeros_like(last)), axis=0)
        named = xp.reshape(named, (dims[0], *(1,) * (len(dims) - 1)))
        io.array("Out")[...] = xp.where(named, new, x)

    return run


def _add_anew(context: Context, io: IO, rows: Any, add: Any, flat: tuple[int, ...]) -> None:
    """Out = X, but the named rows start from zero and take the sum."""
    xp, x = context.xp, io.array("X")
    if immediate(context):
        out = io.array("Out")
        out[...] = x
        out.reshape(flat)[rows] = 0
        add(out, rows, io.array("Updates"), out)
        return
    _, named = last_writers(context, rows, x.shape[0])
    named = xp.reshape(named, (x.shape[0], *(1,) * (x.ndim - 1)))
    add(io.array("Out"), rows, io.array("Updates"), xp.where(named, xp.zeros_like(x), x))


@register_kernel("scatter_grad", "array", indexes=True)
def scatter_grad(call: Call, context: Context) -> Any:
    """X@GRAD is 0 in the rows of Ids, else Out@GRAD; Updates@GRAD are its rows, 0 of those that were overwritten."""
    dims, xp, fast = call.dims("Out@GRAD"), context.xp, immediate(context)
    find, overwrite = plain_find(call, "Ids", dims[0]), call.attr("overwrite")

    def run_on_host(context: Context, io: IO) -> None:
        dout, rows = io.array("Out@GRAD"), find(context, io)
        if io.has("X@GRAD"):
            grad = io.array("X@GRAD")
            grad[...] = dout
            grad[rows] = 0
        if io.has("Updates@GRAD"):
            given = io.array("Updates@GRAD")
            take_rows(xp, dout, rows, given, True)
            if overwrite:
                last, _ = last_writers(context, rows, dims[0])
                given[last[rows] != xp.arange(rows.shape[0])] = 0

    def run(context: Context, io: IO) -> None:
        dout, rows = io.array("Out@GRAD"), find(context, io)
        last, named = last_writers(context, rows, dims[0])
        tail = (1,) * (len(dims) - 1)
        if io.has("X@GRAD"):
            named = xp.reshape(named, (dims[0], *tail))
            io.array("X@GRAD")[...] = xp.where(named, xp.zeros_like(dout), dout)
        if io.has("Updates@GRAD") and rows.shape[0]:
            given = io.array("Updates@GRAD")
            take_rows(xp, dout, rows, given, fast)
            if overwrite:
                count = rows.shape[0]
                stays = xp.take(last, rows, axis=0) == xp.arange(count, dtype=last.dtype)
                given[...] = xp.where(xp.reshape(stays, (count, *tail)), given, xp.zeros_like(given))

    return run_on_host if fast else run


@register_kernel("gather_nd", "array", indexes=True)
def gather_nd(call: Call, context: Context) -> Any:
    """Out[i] = X[Index[i, 0], Index[i, 1], ...]."""
    dims, depth, fast = call.dims("X"), call.dims("Index")[-1], immediate(context)
    find, flat = nd_find(call, "Index", dims[:depth]), matrix(call, "X", prod(dims[depth:]))

    def run(context: Context, io: IO) -> None:
        xp = context.xp
        take_rows(xp, xp.reshape(io.array("X"), flat), find(context, io), io.array("Out"), fast)

    return run


@register_kernel("gather_nd_grad", "array", indexes=True)
def gather_nd_grad(call: Call, context: Context) -> Any:
    """X@GRAD[Index[i, 0], Index[i, 1], ...] += Out@GRAD[i], from zero."""
    dims, depth = call.dims("X@GRAD"), call.dims("Index")[-1]
    find = nd_find(call, "Index", dims[:depth])
    add = row_adder(matrix(call, "X@GRAD", prod(dims[depth:])), call.dtype("X@GRAD"), context)
    return lambda context, io: add(io.array("X@GRAD"), find(context, io), io.array("Out@GRAD"))


@register_kernel("scatter_nd_add", "array", indexes=True)
def scatter_nd_add(call: Call, context: Context) -> Any:
    """Out = X; Out[Index[i, 0], Index[i, 1], ...] += Updates[i]."""
    dims, depth = call.dims("X"), call.dims("Index")[-1]
    find = nd_find(call, "Index", dims[:depth])
    add = row_adder(matrix(call, "X", prod(dims[depth:])), call.dtype("X"), context)
    return lambda context, io: add(io.array("Out"), find(context, io), io.array("Updates"), io.array("X"))
