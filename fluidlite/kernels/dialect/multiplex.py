"""multiplex with its gradient: a launch for each tensor, which touches its own rows."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, register_kernel

from .source import MOVED, Buffer, build, dealt

CHUNK = 4096
"""Longest part of a row that one item copies."""

# Out is complete once each launch has written its rows; the first also writes 0 where an id is out of range.
_CHOOSE = """
  const index_t row = gid / parts, from = (gid - row * parts) * $chunk;
  const index_t to = from + $chunk < width ? from + $chunk : width, id = ids[row];
  const int bad = id < 0 || id >= count;
  if (id == k) {
    for (index_t j = from; j < to; ++j) target[row * width + j] = source[row * width + j];
  } else if (others || (k == 0 && bad)) {
    for (index_t j = from; j < to; ++j) target[row * width + j] = 0;
  }
  if (k == 0 && bad && from == 0) bad_index(status, op_id, id, count);
"""


def _choose(call: Call, context: Context, source: str, target: str, others: bool) -> Any:
    """Copy row i between the tensor that Ids[i] names and the one tensor; ``others``: set other rows to 0."""
    dims, moved, count = call.dims(source), MOVED[ITEMSIZE[call.dtype(source)]], call.count("X")
    kernel = build(
        context, f"multiplex_{moved}_{call.dtype('Ids')}",
        [Buffer("ids", call.dtype("Ids")), Buffer("source", moved), Buffer("target", moved, True),
         Buffer("status", "int64", True)],
        ["width", "parts", "count", "others", "k", "op_id"], _CHOOSE, {"chunk": str(CHUNK)},
    )  # fmt: skip
    width = prod(dims[1:])
    parts = -(-width // CHUNK)
    items = dims[0] * parts

    def run(context: Context, io: IO) -> None:
        for k in range(count):
            spans = (io.span("Ids"), io.span(source, 0 if others else k), io.span(target, k if others else 0),
                     context.status_span())  # fmt: skip
            kernel(context, items, spans, (width, parts, count, int(others), k, io.op_id), dealt(items))

    return run


@register_kernel("multiplex", "dialect", indexes=True)
def multiplex(call: Call, context: Context) -> Any:
    """Out[i] = X[Ids[i]][i]."""
    return _choose(call, context, "X", "Out", others=False)


@register_kernel("multiplex_grad", "dialect", indexes=True)
def multiplex_grad(call: Call, context: Context) -> Any:
    """X@GRAD[k][i] = Out@GRAD[i] where Ids[i] is k, else 0."""
    return _choose(call, context, "Out@GRAD", "X@GRAD", others=True)
