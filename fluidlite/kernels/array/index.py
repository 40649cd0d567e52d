"""gather, lookup_table and its second version with gradients, one_hot and its second version."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate
from .rows import plain_find, row_adder, take_rows

NO_PADDING = -1


@register_kernel("gather", "array", indexes=True)
def gather(call: Call, context: Context) -> Any:
    """Out[i] = X[Index[i]]."""
    find, fast = plain_find(call, "Index", call.dims("X")[0]), immediate(context)

    def run(context: Context, io: IO) -> None:
        take_rows(context.xp, io.array("X"), find(context, io), io.array("Out"), fast)

    return run


@register_kernel("gather_grad", "array", indexes=True)
def gather_grad(call: Call, context: Context) -> Any:
    """X@GRAD[Index[i]] += Out@GRAD[i], from zero."""
    dims = call.dims("X@GRAD")
    find, add = plain_find(call, "Index", dims[0]), row_adder(dims, call.dtype("X@GRAD"), context)

    def run(context: Context, io: IO) -> None:
        add(io.array("X@GRAD"), find(context, io), io.array("Out@GRAD"))

    return run


def _lookup(call: Call, context: Context) -> Any:
    xp, bound, padding = context.xp, call.dims("W")[0], call.attr("padding_idx")
    fast = immediate(context)

    def run(context: Context, io: IO) -> None:
        ids, out = xp.reshape(io.array("Ids"), (-1,)), io.array("Out")
        if padding == NO_PADDING:
            take_rows(xp, io.array("W"), context.check_index(ids, bound, io), out, fast)
            return
        padded = ids == padding
        ids = context.check_index(xp.where(padded, xp.zeros_like(ids), ids), bound, io)
        if fast:
            take_rows(xp, io.array("W"), ids, out, True)
            out.reshape(ids.size, -1)[padded] = 0
        else:
            rows = xp.take(io.array("W"), ids, axis=0)
            out[...] = xp.reshape(xp.where(padded[:, None], xp.zeros_like(rows), rows), out.shape)

    return run


def _lookup_grad(call: Call, context: Context) -> Any:
    xp, (bound, width), padding = context.xp, call.dims("W@GRAD"), call.attr("padding_idx")
    add = row_adder((bound, width), call.dtype("W@GRAD"), context)

    def run(context: Context, io: IO) -> None:
        ids = xp.reshape(io.array("Ids"), (-1,))
        rows = xp.reshape(io.array("Out@GRAD"), (ids.shape[0], width))
        if padding != NO_PADDING:
            padded = ids == padding
            ids = xp.where(padded, xp.zeros_like(ids), ids)
            rows = xp.where(padded[:, None], xp.zeros_like(rows), rows)
        add(io.array("W@GRAD"), context.check_index(ids, bound, io), rows)

    return run


@register_kernel("lookup_table", "array", indexes=True)
def lookup_table(call: Call, context: Context) -> Any:
    """Out[..., :] = W[Ids[..., 0]], zero where the id is ``padding_idx``."""
    return _lookup(call, context)


@register_kernel("lookup_table_v2", "array", indexes=True)
def lookup_table_v2(call: Call, context: Context) -> Any:
    """Out[..., :] = W[Ids[...]], zero where the id is ``padding_idx``."""
    return _lookup(call, context)


@register_kernel("lookup_table_grad", "array", indexes=True)
def lookup_table_grad(call: Call, context: Context) -> Any:
    """W@GRAD[Ids[i]] += Out@GRAD[i], from zero, without the rows of ``padding_idx``."""
    return _lookup_grad(call, context)


@register_kernel("lookup_table_v2_grad", "array", indexes=True)
def lookup_table_v2_grad(call: Call, context: Context) -> Any:
    """W@GRAD[Ids[i]] += Out@GRAD[i], from zero, without the rows of ``padding_idx``."""
    return _lookup_grad(call, context)


def _one_hot(call: Call, context: Context) -> Any:
    xp, depth, loose = context.xp, call.dims("Out")[-1], call.attr("allow_out_of_range")
    rows = prod(call.dims("X"))

    def run(context: Context, io: IO) -> None:
        index, out = xp.reshape(io.array("X"), (rows, 1)), io.array("Out")
        if not loose:
            index = context.check_index(index, depth, io)
        chosen = xp.arange(depth, dtype=index.dtype)[None, :] == index
        out[...] = xp.reshape(xp.astype(chosen, out.dtype), out.shape)

    def run_on_host(context: Context, io: IO) -> None:
        index, out = io.array("X").reshape(-1), io.array("Out")
        places = xp.arange(rows)
        if loose:
            places = places[(index >= 0) & (index < depth)]
            index = index[places]
        else:
            context.check_index(index, depth, io)
        out[...] = 0
        out.reshape(rows, depth)[places, index] = 1

    return run_on_host if immediate(context) else run


@register_kernel("one_hot", "array", indexes=True)
def one_hot(call: Call, context: Context) -> Any:
    """Out[..., X[..., 0]] = 1, the rest 0."""
    return _one_hot(call, context)


@register_kernel("one_hot_v2", "array", indexes=True)
def one_hot_v2(call: Call, context: Context) -> Any:
    """Out[..., X[...]] = 1, the rest 0."""
    return _one_hot(call, context)
