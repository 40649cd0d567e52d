"""A stable merge sort of lines, one launch a pass: no barriers, so one long line occupies many work-items, too."""

from __future__ import annotations

from typing import NamedTuple

from fluidlite.kernel_support import ITEMSIZE
from fluidlite.plugin import Context, Span

from .source import COPY_DTYPES, Buffer, build, load, span_at

RUN_ELEMENTS = 32
"""Elements that a work-item sorts by insertion in the first pass."""
MAX_SEGMENT_ELEMENTS = 1024
"""Maximum elements of a merged pair of runs that one work-item writes."""

_RUNS = """
  const index_t line = gid / runs, start = (gid - line * runs) * $run;
  const index_t count = n - start < $run ? n - start : $run;
  const index_t outer = line / inner, from = (outer * n + start) * inner + line - outer * inner;
  $S keys[$run];
  int places[$run];
  for (int j = 0; j < count; ++j) {
    const $S y = x[from + j * inner];
    int p = j;
    for (; p > 0; --p) {
      const $S z = keys[p - 1];
      if (!$before) break;
      keys[p] = z;
      places[p] = places[p - 1];
    }
    keys[p] = y;
    places[p] = j;
  }
  for (int j = 0; j < count; ++j) {
    key[line * n + start + j] = keys[j];
    place[line * n + start + j] = start + places[j];
  }
"""

# A work-item bisects for the number of elements of the left run that precede its segment, then merges its segment.
_MERGE = """
  const index_t line = gid / segments, from = (gid - line * segments) * segment;
  const index_t pair = from / (2 * length) * (2 * length), left = line * n + pair, d = from - pair;
  const index_t na = n - pair < length ? n - pair : length;
  const index_t nb = n - pair - na < length ? n - pair - na : length, right = left + na;
  index_t low = d > nb ? d - nb : 0, high = d < na ? d : na;
  while (low < high) {
    const index_t middle = (low + high) / 2;
    const $S y = key[right + d - 1 - middle], z = key[left + middle];
    if ($before) high = middle; else low = middle + 1;
  }
  index_t i = left + low, j = right + d - low, t = left + d;
  const index_t end = t + (na + nb - d < segment ? na + nb - d : segment), right_end = right + nb;
  for (; t < end && i < right && j < right_end; ++t) {
    const $S y = key[j], z = key[i];
    const int second = $before;
    const index_t at = second ? j : i;
    sorted[t] = second ? y : z;
    sorted_place[t] = place[at];
    i += 1 - second;
    j += second;
  }
  for (; t < end && i < right; ++t, ++i) { sorted[t] = key[i]; sorted_place[t] = place[i]; }
  for (; t < end; ++t, ++j) { sorted[t] = key[j]; sorted_place[t] = place[j]; }
"""


class Pairs(NamedTuple):
    """Memory of [lines, n] keys in their storage dtype, and of [lines, n] int64 indices into the lines."""

    keys: Span
    places: Span


class MergeSort:
    """Sorts lines of ``x``, [outer, n, inner], along the middle axis, into [outer * inner, n] pairs of key and index.

    NaN comes last; equal keys keep their order.
    """

    def __init__(self, context: Context, dtype: str, outer: int, n: int, inner: int, descending: bool = False) -> None:
        self.n, self.lines, self.inner = n, outer * inner, inner
        stored = dtype if dtype in ("float32", "float64") or "int" in dtype else COPY_DTYPES[ITEMSIZE[dtype]]
        y, z = load(dtype, "y"), load(dtype, "z")
        is_before = f"({y} {'>' if descending else '<'} {z})"
        if "float" in dtype:
            is_before = f"({is_before} || ({z} != {z} && {y} == {y}))"
        words = {"run": str(RUN_ELEMENTS), "S": context.language.types[stored], "before": is_before}
        direction = "falling" if descending else "rising"
        self._runs = build(
            context,
            f"sort_runs_{direction}_{dtype}",
            [Buffer("x", stored), Buffer("key", stored, True), Buffer("place", "int64", True)],
            ["n", "inner", "runs"],
            _RUNS,
            words,
        )
        self._merge = build(
            context,
            f"sort_merge_{direction}_{dtype}",
            [
                Buffer("key", stored),
                Buffer("place", "int64"),
                Buffer("sorted", stored, True),
                Buffer("sorted_place", "int64", True),
            ],
            ["n", "length", "segment", "segments"],
            _MERGE,
            words,
        )
        self.lengths = []
        length = RUN_ELEMENTS
        while length < n:
            self.lengths.append(length)
            length *= 2

    def __call__(self, context: Context, x: Span, result: Pairs, temporary: Pairs) -> None:
        """Sort ``x`` into ``result``; ``temporary`` is the other buffer of the passes."""
        source, target = (result, temporary) if len(self.lengths) % 2 == 0 else (temporary, result)
        runs = -(-self.n // RUN_ELEMENTS)
        self._runs(context, self.lines * runs, (x, *source), (self.n, self.inner, runs), 1)
        for length in self.lengths:
            segment = min(2 * length, MAX_SEGMENT_ELEMENTS)
            segments = -(-self.n // segment)
            numbers = (self.n, length, segment, segments)
            self._merge(context, self.lines * segments, (*source, *target), numbers, 1)
            source, target = target, source


def pairs(span: Span, start: int, size: int, itemsize: int) -> tuple[Pairs, int]:
    """Return the pairs of ``size`` elements in a span from byte ``start`` (a multiple of 8) on, and their end."""
    places, keys = start, start + 8 * size
    return Pairs(span_at(span, keys), span_at(span, places)), start + pairs_bytes(size, itemsize)


def pairs_bytes(size: int, itemsize: int) -> int:
    """Return the bytes that :func:`pairs` takes."""
    return 8 * size + -(-size * itemsize // 8) * 8
