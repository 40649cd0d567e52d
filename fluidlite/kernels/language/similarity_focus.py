"""similarity_focus: a work-item searches one sample's plane; each plane is a launch."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, Prepared, register_kernel

from .source import PER_ITEM, Buffer, build, scratch

# taken: for each sample, flags of the rows and of the columns that have a chosen cell.
_FOCUS = """
  const index_t whole = depth * rows * columns, least = rows < columns ? rows : columns;
  const index_t tags = gid * (rows + columns);
  if (fresh) for (index_t i = 0; i < whole; ++i) out[gid * whole + i] = 0;
  for (index_t i = 0; i < rows + columns; ++i) taken[tags + i] = 0;
  for (index_t round = 0; round < least; ++round) {
    index_t row = -1, column = -1;
    $T most = 0;
    for (index_t i = 0; i < rows; ++i) {
      if (taken[tags + i]) continue;
      for (index_t j = 0; j < columns; ++j) {
        if (taken[tags + rows + j]) continue;
        const $T value = x[gid * whole + plane * depth_step + i * row_step + j * column_step];
        if (row < 0 || value > most || (most != most && value == value)) { most = value; row = i; column = j; }
      }
    }
    taken[tags + row] = 1;
    taken[tags + rows + column] = 1;
    for (index_t k = 0; k < depth; ++k) {
      out[gid * whole + k * depth_step + row * row_step + column * column_step] = 1;
    }
  }
"""


@register_kernel("similarity_focus", "language")
def similarity_focus(call: Call, context: Context) -> Any:
    """Out = 1 at the largest cells of the planes, at most one in each row and column."""
    dims, dtype, axis = call.dims("X"), call.dtype("X"), call.attr("axis")
    steps = [prod(dims[i + 1 :]) for i in range(4)]
    rows, columns = (i for i in (1, 2, 3) if i != axis)
    kernel = build(
        context,
        f"similarity_focus_{dtype}",
        [Buffer("x", dtype), Buffer("taken", "uint8", True), Buffer("out", dtype, True)],
        ["depth", "rows", "columns", "depth_step", "row_step", "column_step", "plane", "fresh"],
        _FOCUS,
        {"T": context.language.types[dtype]},
    )
    numbers = (dims[axis], dims[rows], dims[columns], steps[axis], steps[rows], steps[columns])

    def run(context: Context, io: IO) -> None:
        spans = (io.span("X"), scratch(io), io.span("Out"))
        for first, plane in enumerate(call.attr("indexes")):
            kernel(context, dims[0], spans, (*numbers, plane, int(first == 0)), PER_ITEM)

    return Prepared(run, max(dims[0] * (dims[rows] + dims[columns]), 1))
