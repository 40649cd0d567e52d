"""argsort and top_k: by value, then by index, NaN last in a sort."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE
from fluidlite.plugin import IO, Call, Context, Prepared, compute_dtype, register_kernel

from .merge_sort import MergeSort, Pairs, pairs, pairs_bytes
from .source import MOVED, Buffer, build, ctype, group_size, load, part, scratch

FEW = 16
"""Lines under which one is divided into parts."""
LEAST = 2048
"""Elements that a part has at least."""


def _split(lines: int, n: int) -> int:
    """Into how many parts each line is divided, so that several items have work."""
    return 1 if lines >= FEW else max(min(FEW // max(lines, 1), n // LEAST), 1)


# argsort -----------------------------------------------------------------------------------------------------------

# A row along the axes behind the sorted one an item.
_TURN = """
  const index_t from = gid / n * inner * n + gid % n;
  for (index_t j = 0; j < inner; ++j) turned[gid * inner + j] = lines[from + j * n];
"""


@register_kernel("argsort", "language")
def argsort(call: Call, context: Context) -> Any:
    """X in order along ``axis``, NaN last, and where each element was.

    Along the last axis the outputs are one of the two buffers; along another, both hold whole lines before the
    result is turned.
    """
    dims, dtype = call.dims("X"), call.dtype("X")
    axis = call.attr("axis") % len(dims)
    outer, n, inner = prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])
    size, width = prod(dims), ITEMSIZE[dtype]
    sort = MergeSort(context, dtype, outer, n, inner, call.attr("descending"))
    both = call.has("Out") and call.has("Indices")
    turn = {
        slot: build(
            context, f"turn_{kind}", [Buffer("lines", kind), Buffer("turned", kind, True)], ["n", "inner"], _TURN
        )
        for slot, kind in (("Out", MOVED[width]), ("Indices", "int64"))
        if inner > 1 and call.has(slot)
    }

    def run(context: Context, io: IO) -> None:
        space = scratch(io)
        spare, used = pairs(space, 0, size, width)
        mine = pairs(space, used, size, width)[0] if not both else None
        keys = io.span("Out") if io.has("Out") else mine.keys if mine else space
        places = io.span("Indices") if io.has("Indices") else mine.places if mine else space
        given = Pairs(keys, places)
        if inner == 1:
            sort(context, io.span("X"), given, spare)
            return
        sort(context, io.span("X"), spare, given)
        for slot, kernel in turn.items():
            source = spare.keys if slot == "Out" else spare.places
            kernel(context, outer * n, (source, io.span(slot)), (n, inner), group_size(outer * n))

    return Prepared(run, pairs_bytes(size, width) * (1 if both else 2))


# top_k -------------------------------------------------------------------------------------------------------------

# The best so far stand sorted in the output; a later one moves up past those that are less, so equal ones keep
# the order of their columns, and NaN, which is less than all, comes last.
_TOP_K = """
  const index_t row = gid / parts, first = (gid - row * parts) * step, at = row * n, to = gid * k;
  const index_t end = first + step < count ? first + step : count;
  index_t kept = 0;
  for (index_t c = first; c < end; ++c) {
    const index_t j = $column;
    if (j < 0) continue;
    const $T y = $x;
    if (kept == k) {
      const $T z = $last;
      if (!(y > z$nan)) continue;
    }
    index_t p = kept < k ? kept++ : k - 1;
    for (; p > 0; --p) {
      const $T z = $before;
      if (!(y > z$nan)) break;
      indices[to + p] = indices[to + p - 1];
    }
    indices[to + p] = j;
  }
  for (; kept < k; ++kept) indices[to + kept] = -1;
  $values
"""


def _top_kernel(context: Context, dtype: str, chosen: bool, values: bool) -> Any:
    """A kernel that looks at every column, or at those that are chosen already (-1: none)."""
    buffers = [Buffer("x", dtype), *([Buffer("chosen", "int64")] if chosen else []), Buffer("indices", "int64", True)]
    words = {
        "T": ctype(context, compute_dtype(dtype)),
        "x": load(dtype, "x[at + j]"),
        "last": load(dtype, "x[at + indices[to + k - 1]]"),
        "before": load(dtype, "x[at + indices[to + p - 1]]"),
        "nan": " || (z != z && y == y)" if "float" in dtype else "",
        "column": "chosen[row * count + c]" if chosen else "c",
        "values": "for (index_t p = 0; p < k; ++p) out[to + p] = x[at + indices[to + p]];" if values else "",
    }
    if values:
        buffers.append(Buffer("out", dtype, True))
    name = f"top_k{'_chosen' if chosen else ''}_{dtype}_{'values' if values else 'indices'}"
    return build(context, name, buffers, ["n", "k", "parts", "step", "count"], _TOP_K, words)


@register_kernel("top_k", "language")
def top_k(call: Call, context: Context) -> Any:
    """The ``k`` greatest of each row, descending, and their columns; of equal ones the first, NaN last.

    Where rows are few, each part of one gives its ``k`` greatest, and those of all parts give the row's.
    """
    dims, dtype = call.dims("X"), call.dtype("X")
    k = call.dims("Out" if call.has("Out") else "Indices")[-1]
    rows, n, values = prod(dims[:-1]), dims[-1], call.has("Out")
    parts = min(_split(rows, n), max(n // (4 * k), 1))
    step = -(-n // parts)
    whole = _top_kernel(context, dtype, parts > 1, values)
    first = _top_kernel(context, dtype, False, False) if parts > 1 else None
    given = 0 if call.has("Indices") else rows * k * 8

    def run(context: Context, io: IO) -> None:
        space = io.workspace.span() if io.workspace is not None else None
        if io.has("Indices"):
            indices = io.span("Indices")
        else:
            assert space is not None
            indices = space
        spans, numbers = [io.span("X"), indices], (n, k, 1, n, n)
        if first is not None:
            assert space is not None
            found = part(space, given)
            first(context, rows * parts, (io.span("X"), found), (n, k, parts, step, n), 1)
            spans, numbers = [io.span("X"), found, indices], (n, k, 1, parts * k, parts * k)
        whole(context, rows, [*spans, *([io.span("Out")] if values else [])], numbers, group_size(rows))

    return Prepared(run, given + (rows * parts * k * 8 if parts > 1 else 0))
