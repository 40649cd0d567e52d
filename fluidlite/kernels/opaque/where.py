"""where_index, unique and unique_with_counts: outputs of data-dependent size."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, register_kernel

from .common import is_on_host, stable_argsort
from .sorting import host_argsort

BLOCK_ROWS = 65536
"""Rows of indices that are computed at a time on the host."""

MAX_TABLE_RATIO = 4
"""Maximum range of integers, as a multiple of their number, for a lookup table instead of a sort."""
LIBRARY = KernelOptions(library_backed=True)


@register_kernel("where_index", "array", options=LIBRARY)
def where_index(call: Call, context: Context) -> Any:
    """The indices of the elements that are not 0, one row each."""
    xp, dims = context.xp, call.dims("Condition")

    def run(context: Context, io: IO) -> None:
        (flat,) = xp.nonzero(xp.reshape(io.array("Condition"), (-1,)))
        io.resize("Out", (flat.shape[0], len(dims)))
        out, count = io.array("Out"), flat.shape[0]
        if not count:
            return
        step = BLOCK_ROWS if is_on_host(context) else count
        for at in range(0, count, step):
            remaining, rows = flat[at : at + step], slice(at, min(at + step, count))
            for axis in range(len(dims) - 1, 0, -1):
                rest = remaining // dims[axis]
                out[rows, axis] = remaining - rest * dims[axis]
                remaining = rest
            out[rows, 0] = remaining

    return run


def _from_table(xp: Any, io: IO, x: Any, low: int) -> None:
    """Compute unique integers of a small range by a table of first occurrences instead of a sort."""
    x = x - low
    first = xp.full(int(x.max()) + 1, x.size, xp.int64)
    first[x[::-1]] = xp.arange(x.size - 1, -1, -1)  # in reverse, so the first occurrence remains
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
    """The distinct values in the order of their first occurrence, the index of each element's value, and the counts.

    X is sorted, and the starts of runs of equal values are marked; the first occurrence of a value in X numbers it.
    """
    xp, size, on_host = context.xp, call.dims("X")[0], is_on_host(context)
    argsort = host_argsort(xp) if on_host else stable_argsort(xp)
    cumulative_sum = getattr(xp, "cumulative_sum", None) or xp.cumsum

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
            if int(x.max()) - low < MAX_TABLE_RATIO * size:
                _from_table(xp, io, x, low)
                return
        order = argsort(x)
        ranked = xp.take(x, order, axis=0)
        starts_run = xp.concat([xp.ones((1,), dtype=xp.bool), ranked[1:] != ranked[:-1]])
        inverse_order = inverse(order)
        first = xp.take(starts_run, inverse_order, axis=0)  # the sort is stable, so the first in X starts its run
        numbers_in_x = cumulative_sum(xp.astype(first, xp.int64)) - 1
        of_run = xp.take(numbers_in_x, order[starts_run], axis=0)
        if io.has("Index"):
            out = io.array("Index")
            run_of = xp.take(cumulative_sum(xp.astype(starts_run, xp.int64)) - 1, inverse_order, axis=0)
            out[...] = xp.astype(xp.take(of_run, run_of, axis=0), out.dtype)
        if io.has("Out"):
            io.resize("Out", of_run.shape)
            io.array("Out")[...] = x[first]
        if io.has("Count"):
            io.resize("Count", of_run.shape)
            (starts,) = xp.nonzero(starts_run)
            ends = xp.concat([starts[1:], xp.full((1,), size, dtype=starts.dtype)])
            out = io.array("Count")
            out[...] = xp.astype(xp.take(ends - starts, inverse(of_run), axis=0), out.dtype)

    return run


unique = register_kernel("unique", "array", options=LIBRARY)(_unique)
unique_with_counts = register_kernel("unique_with_counts", "array", options=LIBRARY)(_unique)
