"""Histograms without atomics: each work-item counts one part of the rows into its own bins, then parts are summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fluidlite.kernel_support import ITEMSIZE
from fluidlite.plugin import Context, Span

from .source import Buffer, build, ctype

MAX_PARTS = 64
MIN_PART_ROWS = 4096
"""Minimum rows of a part, which also has at least as many rows as bins: summing parts must not cost more than counting.
``MAX_PARTS``: the maximum number of parts, each a work-item."""

_COUNT = """
  const index_t mine = gid * bins, from = gid * length, to = from + length < rows ? from + length : rows;
  for (index_t b = 0; b < bins; ++b) counts[mine + b] = 0;
  for (index_t i = from; i < to; ++i) { $row }
"""
_JOIN = """
  $T total = counts[gid];
  for (index_t p = 1; p < parts; ++p) total += counts[p * bins + gid];
  counts[gid] = total;
"""


class Counter(NamedTuple):
    """``run(context, spans, counts, numbers)`` writes the first bins of ``counts``, which has ``workspace`` bytes."""

    run: Callable[[Context, Sequence[Span], Span, Sequence[int]], None]
    workspace: int


def counter(
    context: Context,
    entry: str,
    buffers: Sequence[Buffer],
    numbers: Sequence[str],
    row: str,
    words: Mapping[str, str],
    dtype: str,
    rows: int,
    bins: int,
) -> Counter:
    """Count ``rows`` rows into ``bins`` bins of ``dtype``.

    ``entry``: the kernel's name.
    ``buffers``: the buffers that ``row`` reads, and the status word.
    ``numbers``: further int64 parameters.
    ``row``: statements that add row ``i`` to ``counts[mine + bin]``; a template of ``words``.
    """
    parts = max(1, min(MAX_PARTS, rows // max(MIN_PART_ROWS, bins)))
    length = -(-rows // parts)
    count = build(
        context,
        f"{entry}_{dtype}",
        [*buffers, Buffer("counts", dtype, True)],
        ["rows", "length", "bins", *numbers],
        _COUNT.replace("$row", row),
        words,
    )
    join = build(
        context,
        f"add_counts_{dtype}",
        [Buffer("counts", dtype, True)],
        ["parts", "bins"],
        _JOIN,
        {"T": ctype(context, dtype)},
    )

    def run(context: Context, spans: Sequence[Span], counts: Span, numbers: Sequence[int]) -> None:
        count(context, parts, [*spans, counts], (rows, length, bins, *numbers), 1)
        if parts > 1:
            join(context, bins, [counts], (parts, bins))

    return Counter(run, parts * bins * ITEMSIZE[dtype])
