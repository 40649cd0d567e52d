"""where_index, unique and unique_with_counts: outputs whose size the values decide."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, register_kernel

from .common import immediate, stable_argsort
from .sorting import order_on_host

BLOCK = 65536
"""Rows of indices that are worked out at a time, on the host."""

DENSE = 4
"""Integers that span at most so many times their number are looked up in a table."""
LIBRARY = KernelOptions(library_backed=True)


@register_kernel("where_index", "array", options=LIBRARY)
def where_index(call: Call, context: Context) -> Any:
    """The indices of what is not 0, a row each."""
    xp, dims = context.xp, call.dims("Condition")

    def run(context: Context, io: IO) -> None:
        (flat,) = xp.nonzero(xp.reshape(io.array("Condition"), (-1,)))
        io.resize("Out", (flat.shape[0], len(dims)))
        out, count = io.array("Out"), flat.shape[0]
        if not count:
            return
        step = BLOCK if immediate(context) else count
        for at in range(0, count, step):
            whole, rows = flat[at : at + step], slice(at, min(at + step, count))
            for axis in range(len(dims) - 1, 0, -1):
                rest = whole // dims[axis]
                out[rows, axis] = whole - rest * dims[axis]
                whole = rest
            out[rows, 0] = whole

    return run


def _from_table(xp: Any, io: IO, x: Any, low: int) -> None:
    """Integers of a small range: a table of where each comes first takes the place of a sort."""
    x = x - low
    first = xp.full(int(x.max()) + 1, x.size, xp.int64)
    first[x[::-1]] = xp.arange(x.size - 1, -1, -1)  # in order, so the first one stays
    values = xp.nonzero(first < x.size)[0]
    values = values[xp.argsort(first[values])]
    if io.has("Index"):
        first[values] = xp.arange(values.size)
        io.array("Index")[...] = xp.take(first, x)
    if io.has("Out"):
        io.resize("Out", values.shape)
        io.array("Out")[...] = values + low
    if io.has("Count"):
        io.resize("Count", values.shape)
        io.array("Count")[...] = xp.bincount(x)[values]


def _unique(call: Call, context: Context) -> Any:
    """The different values in the order in which they come, which of them each element is, and how often each comes.

    Sort, and mark where a new value starts; what comes first of each value in X numbers it.
    """
    xp, size, on_host = context.xp, call.dims("X")[0], immediate(context)
    argsort = order_on_host(xp) if on_host else stable_argsort(xp)
    running = getattr(xp, "cumulative_sum", None) or xp.cumsum

    def inverse(order: Any) -> Any:
        if not on_host:
            return argsort(order)
        places = xp.empty_like(order)
        places[order] = xp.arange(order.shape[0])
        return places

    def run(context: Context, io: IO) -> None:
        x = io.array("X")
        if not size:
            for slot in ("Out", "Count"):
                if io.has(slot):
                    io.resize(slot, (0,))
                    io.array(slot)
            return
        if on_host and x.dtype.kind == "i":
            low = int(x.min())
            if int(x.max()) - low < DENSE * size:
                _from_table(xp, io, x, low)
                return
        order = argsort(x)
        ranked = xp.take(x, order, axis=0)
        new = xp.concat([xp.ones((1,), dtype=xp.bool), ranked[1:] != ranked[:-1]])
        back = inverse(order)
        first = xp.take(new, back, axis=0)  # equal values keep their order, so the first in X starts its run
        number = running(xp.astype(first, xp.int64)) - 1
        of_run = xp.take(number, order[new], axis=0)
        if io.has("Index"):
            out = io.array("Index")
            run_of = xp.take(running(xp.astype(new, xp.int64)) - 1, back, axis=0)
            out[...] = xp.astype(xp.take(of_run, run_of, axis=0), out.dtype)
        if io.has("Out"):
            io.resize("Out", of_run.shape)
            io.array("Out")[...] = x[first]
        if io.has("Count"):
            io.resize("Count", of_run.shape)
            (starts,) = xp.nonzero(new)
            ends = xp.concat([starts[1:], xp.full((1,), size, dtype=starts.dtype)])
            out = io.array("Count")
            out[...] = xp.astype(xp.take(ends - starts, inverse(of_run), axis=0), out.dtype)

    return run


unique = register_kernel("unique", "array", options=LIBRARY)(_unique)
unique_with_counts = register_kernel("unique_with_counts", "array", options=LIBRARY)(_unique)
