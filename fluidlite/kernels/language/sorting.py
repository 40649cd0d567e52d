"""argsort and top_k: ordered by value, then by index; NaN comes last."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE
from fluidlite.plugin import IO, Call, Context, Prepared, compute_dtype, register_kernel

from .merge_sort import MergeSort, Pairs, pairs, pairs_bytes
from .source import COPY_DTYPES, Buffer, build, ctype, group_size, load, scratch, span_at

MIN_ITEMS = 16
"""Minimum work-items: with fewer lines, a line is split into parts."""
MIN_PART_ELEMENTS = 2048
"""Minimum elements of a part of a line."""


def _split(lines: int, n: int) -> int:
    """Return the number of parts of each line, so that several work-items have work."""
    return 1 if lines >= MIN_ITEMS else max(min(MIN_ITEMS // max(lines, 1), n // MIN_PART_ELEMENTS), 1)


# argsort -----------------------------------------------------------------------------------------------------------

# A work-item transposes one row along the axes behind the sorted axis.
_TRANSPOSE = """
  const index_t from = gid / n * inner * n + gid % n;
  for (index_t j = 0; j < inner; ++j) turned[gid * inner + j] = lines[from + j * n];
"""


@register_kernel("argsort", "language")
def argsort(call: Call, context: Context) -> Any:
    """X sorted along ``axis``, NaN last, and the index of each element in X.

    Along the last axis the outputs are one of the two buffers of the sort. Along another axis both buffers hold
    contiguous lines, and the result is transposed.
    """
    dims, dtype = call.dims("X"), call.dtype("X")
    axis = call.attr("axis") % len(dims)
    outer, n, inner = prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])
    size, width = prod(dims), ITEMSIZE[dtype]
    sort = MergeSort(context, dtype, outer, n, inner, call.attr("descending"))
    has_both_outputs = call.has("Out") and call.has("Indices")
    transpose_kernels = {
        slot: build(
            context, f"turn_{kind}", [Buffer("lines", kind), Buffer("turned", kind, True)], ["n", "inner"], _TRANSPOSE
        )
        for slot, kind in (("Out", COPY_DTYPES[width]), ("Indices", "int64"))
        if inner > 1 and call.has(slot)
    }

    def run(context: Context, io: IO) -> None:
        space = scratch(io)
        spare, end = pairs(space, 0, size, width)
        rest = pairs(space, end, size, width)[0] if not has_both_outputs else None
        keys = io.span("Out") if io.has("Out") else rest.keys if rest else space
        places = io.span("Indices") if io.has("Indices") else rest.places if rest else space
        sorted_pairs = Pairs(keys, places)
        if inner == 1:
            sort(context, io.span("X"), sorted_pairs, spare)
            return
        sort(context, io.span("X"), spare, sorted_pairs)
        for slot, kernel in transpose_kernels.items():
            source = spare.keys if slot == "Out" else spare.places
            kernel(context, outer * n, (source, io.span(slot)), (n, inner), group_size(outer * n))

    return Prepared(run, pairs_bytes(size, width) * (1 if has_both_outputs else 2))


# top_k -------------------------------------------------------------------------------------------------------------

# The output holds the largest so far, sorted; a later element moves up past smaller ones, so equal elements keep the
# order of their columns, and NaN, which counts as the smallest, comes last.
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
    """Return a kernel that searches every column, or the columns in ``chosen`` (-1: none)."""
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
    """The ``k`` largest elements of each row, descending, and their columns; of equal ones the first, NaN last.

    With few rows, a row is split into parts; the ``k`` largest of the row are found among those of its parts.
    """
    dims, dtype = call.dims("X"), call.dtype("X")
    k = call.dims("Out" if call.has("Out") else "Indices")[-1]
    rows, n, values = prod(dims[:-1]), dims[-1], call.has("Out")
    parts = min(_split(rows, n), max(n // (4 * k), 1))
    step = -(-n // parts)
    final_kernel = _top_kernel(context, dtype, parts > 1, values)
    part_kernel = _top_kernel(context, dtype, False, False) if parts > 1 else None
    indices_nbytes = 0 if call.has("Indices") else rows * k * 8

    def run(context: Context, io: IO) -> None:
        space = io.workspace.span() if io.workspace is not None else None
        if io.has("Indices"):
            indices = io.span("Indices")
        else:
            assert space is not None
            indices = space
        spans, numbers = [io.span("X"), indices], (n, k, 1, n, n)
        if part_kernel is not None:
            assert space is not None
            part_indices = span_at(space, indices_nbytes)
            part_kernel(context, rows * parts, (io.span("X"), part_indices), (n, k, parts, step, n), 1)
            spans, numbers = [io.span("X"), part_indices, indices], (n, k, 1, parts * k, parts * k)
        final_kernel(context, rows, [*spans, *([io.span("Out")] if values else [])], numbers, group_size(rows))

    return Prepared(run, indices_nbytes + (rows * parts * k * 8 if parts > 1 else 0))
