"""where_index, unique and unique_with_counts: outputs of data-dependent size, with one copy of a count to the host."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE
from fluidlite.plugin import IO, Call, Context, Prepared, Span, register_kernel

from .merge_sort import MergeSort, pairs, pairs_bytes
from .selecting import Selector
from .source import Buffer, build, load, scratch, span_at, store


@register_kernel("where_index", "language")
def where_index(call: Call, context: Context) -> Any:
    """The indices of the elements that are not 0, one row each."""
    dims, dtype = call.dims("Condition"), call.dtype("Condition")
    rank = len(dims)
    lines = ["index_t left = i;"]
    for axis in range(rank - 1, 0, -1):
        lines.append(f"out[at * {rank} + {axis}] = left - left / n{axis} * n{axis}; left /= n{axis};")
    lines.append(f"out[at * {rank}] = left;")
    selector = Selector(
        context,
        f"where_{rank}_{dtype}",
        prod(dims),
        [Buffer("x", dtype)],
        f"{load(dtype, 'x[i]')} != 0",
        "\n      ".join(lines),
        [Buffer("out", "int64", True)],
        {f"n{axis}": dims[axis] for axis in range(1, rank)},
    )

    def run(context: Context, io: IO) -> None:
        def outputs(count: int) -> Sequence[Span]:
            io.resize("Out", (count, rank))
            return (io.span("Out"),)

        selector(context, scratch(io), (io.span("Condition"),), outputs)

    return Prepared(run, selector.workspace)


def _bisect(less: str, y: str, begin: str = "0") -> str:
    """Return the text that sets ``low`` to the first index from ``begin`` on whose key is not ``less`` than y."""
    return (
        f"index_t low = {begin}, high = n; while (low < high) {{ const index_t middle = (low + high) / 2; "
        f"if (key[middle] {less} {y}) low = middle + 1; else high = middle; }}"
    )


def _unique(call: Call, context: Context) -> Any:
    """The distinct values in the order of their first occurrence, the index of each element's value, and the counts.

    The workspace has two sorted copies of X with their indices.
    """
    dtype, kind, n = call.dtype("X"), call.attr("dtype"), call.dims("X")[0]
    width, floating = ITEMSIZE[dtype], "float" in dtype

    def unless_nan(value: str, statement: str) -> str:  # a NaN equals nothing, itself included
        return f"if ({value} == {value}) {statement}" if floating else statement

    sort = MergeSort(context, dtype, 1, n, 1)
    firsts = build(
        context,
        f"unique_first_{dtype}",
        [Buffer("key", dtype), Buffer("place", "int64"), Buffer("first", "int64", True)],
        ["n"],
        f"  index_t found = gid; {unless_nan('key[gid]', '{ ' + _bisect('<', 'key[gid]') + ' found = low; }')}\n"
        "  first[place[gid]] = place[found];",
    )
    values, counts = call.has("Out"), call.has("Count")
    write = "number[i] = at;"
    if values:
        write += " out[at] = x[i];"
    if counts:
        begin, end = _bisect("<", "x[i]"), _bisect("<=", "x[i]", "begin")
        times = unless_nan("x[i]", f"{{ {{ {begin} begin = low; }} {end} times = low - begin; }}")
        write += f" index_t times = 1, begin = 0; {times} " + store(context, kind, "count[at]", "times")
    buffers = [Buffer("x", dtype), Buffer("key", dtype), Buffer("number", "int64", True)]
    buffers += [Buffer("out", dtype, True)] if values else []
    buffers += [Buffer("count", kind, True)] if counts else []
    suffix = f"{dtype}{'_values' if values else ''}{'_counts_' + kind if counts else ''}"
    selector = Selector(context, f"unique_{suffix}", n, [Buffer("first", "int64")], "first[i] == i", write, buffers, {})
    index = build(
        context,
        f"unique_index_{kind}",
        [Buffer("first", "int64"), Buffer("number", "int64"), Buffer("index", kind, True)],
        [],
        "  " + store(context, kind, "index[gid]", "number[first[gid]]"),
    )

    def run(context: Context, io: IO) -> None:
        space = scratch(io)
        ranked, end = pairs(space, 0, n, width)
        spare, end = pairs(space, end, n, width)
        sums = span_at(space, end)
        x, first, number = io.span("X"), spare.places, ranked.places
        sort(context, x, ranked, spare)
        firsts(context, n, (ranked.keys, ranked.places, first), (n,))

        def outputs(count: int) -> Sequence[Span]:
            spans = [x, ranked.keys, number]
            for slot in ("Out", "Count"):
                if io.has(slot):
                    io.resize(slot, (count,))
                    spans.append(io.span(slot))
            return spans

        selector(context, sums, (first,), outputs)
        if io.has("Index"):
            index(context, n, (first, number, io.span("Index")), ())

    return Prepared(run, 2 * pairs_bytes(n, width) + selector.workspace)


unique = register_kernel("unique", "language")(_unique)
unique_with_counts = register_kernel("unique_with_counts", "language")(_unique)
