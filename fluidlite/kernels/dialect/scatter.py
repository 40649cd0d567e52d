"""scatter, gather_nd and scatter_nd_add, with gradients."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .rows import Find, Taker, Writer, adder, nd_find, plain_find


def _by_ids(call: Call, dims: tuple[int, ...]) -> tuple[Find, int]:
    return plain_find("Ids", call.dtype("Ids"), dims[0], prod(call.dims("Ids"))), prod(dims[1:])


@register_kernel("scatter", "dialect", indexes=True)
def scatter(call: Call, context: Context) -> Any:
    """Out = X, its rows Ids replaced by Updates (the last counts), or by the sum of theirs."""
    find, width = _by_ids(call, call.dims("X"))
    dtype = call.dtype("X")
    if not call.attr("overwrite"):
        return adder(context, find, dtype, width, "Out", "Updates", "X", anew=True)
    write = Writer(context, find, (dtype, dtype), width, "x", ["= y"])
    return lambda context, io: write(context, io, io.span("Out"), io.span("X"), io.span("Updates"))


@register_kernel("scatter_grad", "dialect", indexes=True)
def scatter_grad(call: Call, context: Context) -> Any:
    """X@GRAD is 0 in the rows of Ids, else Out@GRAD; Updates@GRAD are its rows, 0 of those that were overwritten."""
    find, width = _by_ids(call, call.dims("Out@GRAD"))
    dtype, overwrite = call.dtype("Out@GRAD"), call.attr("overwrite") and call.has("Updates@GRAD")
    clear = Writer(context, find, (dtype, dtype), width, "x", ["= 0"])
    order = Writer(context, find, ("int32", "int32"), 1, "-1", ["= i"])
    take = Taker(context, find, dtype, width, last=overwrite)

    def run(context: Context, io: IO) -> None:
        dout = io.span("Out@GRAD")
        if io.has("X@GRAD"):
            clear(context, io, io.span("X@GRAD"), dout)
        if io.has("Updates@GRAD"):
            last = io.workspace.span() if io.workspace is not None else None
            if last is not None:
                order(context, io, last)
            take(context, io, dout, io.span("Updates@GRAD"), last)

    run.workspace = find.rows * 4 if overwrite else 0  # type: ignore[attr-defined]
    return run


def _by_index(call: Call, dims: tuple[int, ...]) -> tuple[Find, int]:
    index = call.dims("Index")
    inner = dims[index[-1] :]
    rows = prod(dims[: index[-1]])
    return nd_find("Index", call.dtype("Index"), dims[: index[-1]], prod(index[:-1]), rows), prod(inner)


@register_kernel("gather_nd", "dialect", indexes=True)
def gather_nd(call: Call, context: Context) -> Any:
    """Out[i] = X[Index[i, 0], Index[i, 1], ...]."""
    find, width = _by_index(call, call.dims("X"))
    take = Taker(context, find, call.dtype("X"), width)
    return lambda context, io: take(context, io, io.span("X"), io.span("Out"))


@register_kernel("gather_nd_grad", "dialect", indexes=True)
def gather_nd_grad(call: Call, context: Context) -> Any:
    """X@GRAD[Index[i, 0], Index[i, 1], ...] += Out@GRAD[i], from zero."""
    find, width = _by_index(call, call.dims("X@GRAD"))
    return adder(context, find, call.dtype("X@GRAD"), width, "X@GRAD", "Out@GRAD")


@register_kernel("scatter_nd_add", "dialect", indexes=True)
def scatter_nd_add(call: Call, context: Context) -> Any:
    """Out = X; Out[Index[i, 0], Index[i, 1], ...] += Updates[i]."""
    find, width = _by_index(call, call.dims("X"))
    return adder(context, find, call.dtype("X"), width, "Out", "Updates", "X")
