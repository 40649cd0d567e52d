"""Stream compaction: counts the indices that fulfil a condition, then writes them in order (data-dependent sizes)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fluidlite.plugin import Context, Span

from .source import Buffer, build

BLOCK_ELEMENTS = 1024
"""Elements that a work-item counts."""

_COUNT = """
  const index_t end = (gid + 1) * $block < n ? (gid + 1) * $block : n;
  index_t count = 0;
  for (index_t i = gid * $block; i < end; ++i) count += $holds ? 1 : 0;
  sums[gid] = count;
"""

_STARTS = """
  index_t total = 0;
  for (index_t b = 0; b < blocks; ++b) { const index_t count = sums[b]; sums[b] = total; total += count; }
  sums[blocks + gid] = total;
"""

_WRITE = """
  const index_t end = (gid + 1) * $block < n ? (gid + 1) * $block : n;
  index_t at = sums[gid];
  for (index_t i = gid * $block; i < end; ++i)
    if ($holds) {
      $write
      ++at;
    }
"""


class Selector:
    """Counts the ``i`` in [0, n) for which ``holds`` is true, then runs ``write`` for each with its rank ``at``.

    ``name``: a part of the kernels' names.
    ``inputs``: the buffers that ``holds`` reads.
    ``holds``: a condition on ``i``.
    ``write``: statements on ``i`` and ``at``.
    ``buffers``: the buffers that ``write`` uses besides the inputs.
    ``numbers``: the numbers that ``write`` uses.
    ``workspace``: bytes of its partial sums.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        n: int,
        inputs: Sequence[Buffer],
        holds: str,
        write: str,
        buffers: Sequence[Buffer],
        numbers: Mapping[str, int],
    ) -> None:
        self.n, self.blocks, self.numbers = n, -(-n // BLOCK_ELEMENTS), tuple(numbers.values())
        words = {"block": str(BLOCK_ELEMENTS), "holds": holds, "write": write}
        sums = Buffer("sums", "int64", True)
        self._count = build(context, f"select_count_{name}", [*inputs, sums], ["n"], _COUNT, words)
        self._starts = build(context, "select_starts", [sums], ["blocks"], _STARTS)
        self._write = build(
            context, f"select_{name}", [*inputs, Buffer("sums", "int64"), *buffers], ["n", *numbers], _WRITE, words
        )
        self.workspace = (self.blocks + 1) * 8

    def __call__(
        self, context: Context, sums: Span, inputs: Sequence[Span], outputs: Callable[[int], Sequence[Span]]
    ) -> None:
        """Count, read the count once, call ``outputs(count)`` for the spans of ``buffers``, and write."""
        self._count(context, self.blocks, (*inputs, sums), (self.n,), 1)
        self._starts(context, 1, (sums,), (self.blocks,), 1)
        host = np.zeros(1, np.int64)
        if self.n:
            context.copy_out(host.data.cast("B"), Span(sums.handle, sums.offset + self.blocks * 8, 8))
            context.wait()
        output_spans = outputs(int(host[0]))
        if host[0]:
            self._write(context, self.blocks, (*inputs, sums, *output_spans), (self.n, *self.numbers), 1)
