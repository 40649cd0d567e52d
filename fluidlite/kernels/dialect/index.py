"""gather and lookup_table with gradients, one_hot and top_k.

An index out of range is recorded in the status word, and its row is 0.
"""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, compute_dtype, register_kernel

from .source import MOVED, Buffer, build, ctype, dealt, load, store
from .strided import mover

NO_PADDING = -1
_STATUS = Buffer("status", "int64", True)
CHUNK = 2048
"""Longest part of a row that one item copies."""

_TAKE = """
  const index_t i = gid / parts, from = (gid - i * parts) * $chunk;
  const index_t to = from + $chunk < width ? from + $chunk : width, row = index[i];
  if (row < 0 || row >= bound || row == padding) {
    for (index_t j = from; j < to; ++j) out[i * width + j] = 0;
    if (row != padding && from == 0) bad_index(status, op_id, row, bound);
  } else {
    for (index_t j = from; j < to; ++j) out[i * width + j] = x[row * width + j];
  }
"""


def _take(call: Call, context: Context, x: str, index: str, padding: int | None) -> Any:
    dims = call.dims(x)
    moved = MOVED[ITEMSIZE[call.dtype(x)]]
    kernel = build(
        context, f"take_rows_{moved}",
        [Buffer("x", moved), Buffer("index", call.dtype(index)), Buffer("out", moved, True), _STATUS],
        ["width", "bound", "padding", "parts", "op_id"], _TAKE, {"chunk": str(CHUNK)},
    )  # fmt: skip
    width, bound = prod(dims[1:]), dims[0]
    parts = -(-width // CHUNK)
    items = prod(call.dims(index)) * parts
    # without padding, an impossible row stands for it: it is out of range, but none asks for it
    spared = padding if padding is not None else _NOWHERE

    def run(context: Context, io: IO) -> None:
        spans = (io.span(x), io.span(index), io.span("Out"), context.status_span())
        kernel(context, items, spans, (width, bound, spared, parts, io.op_id), dealt(items))

    return run


_NOWHERE = -(2**63)

_ADD = """
  const index_t chunks = (width + 15) / 16, part = gid / chunks, j = (gid - part * chunks) * 16;
  const index_t first = part * rows, last = first + rows < bound ? first + rows : bound;
  const int lanes = width - j < 16 ? (int)(width - j) : 16;
  for (index_t r = first; r < last; ++r)
    for (int v = 0; v < lanes; ++v) grad[r * width + j + v] = 0;
  for (index_t i = 0; i < count; ++i) {
    const index_t row = index[i];
    if (gid == 0 && row != padding && (row < 0 || row >= bound)) bad_index(status, op_id, row, bound);
    if (row >= first && row < last && row != padding)
      for (int v = 0; v < lanes; ++v) grad[row * width + j + v] += $dout;
  }
"""
_PARTS = 8


def _add(call: Call, context: Context, slot: str, index: str, padding: int | None) -> Any:
    """Add rows of Out@GRAD to those of the gradient that the index names, from zero.

    An item owns 16 columns of an eighth of the rows and reads every index in order: sums repeat bit for bit
    without atomics, at the cost of reading the index width / 16 * 8 times. Rows out of range belong to no item, and
    the first item reports them. Half types add in float32.
    """
    dims, dtype = call.dims(slot), call.dtype(slot)
    wide = compute_dtype(dtype)
    kernel = build(
        context, f"add_rows_{dtype}",
        [Buffer("index", call.dtype(index)), Buffer("dout", dtype), Buffer("grad", wide, True), _STATUS],
        ["width", "bound", "padding", "count", "rows", "op_id"], _ADD, {"dout": load(dtype, "dout[i * width + j + v]")},
    )  # fmt: skip
    width, bound = prod(dims[1:]), dims[0]
    rows = -(-bound // _PARTS)
    items = -(-width // 16) * -(-bound // rows)
    numbers = (width, bound, padding if padding is not None else _NOWHERE, prod(call.dims(index)), rows)
    narrow = mover(context, wide, dtype, (prod(dims),), (1,), (1,)) if wide != dtype else None

    def run(context: Context, io: IO) -> None:
        grad = io.span(slot)
        sums = grad
        if narrow is not None:
            assert io.workspace is not None
            sums = io.workspace.span()
        spans = (io.span(index), io.span("Out@GRAD"), sums, context.status_span())
        kernel(context, items, spans, (*numbers, io.op_id), 1)
        if narrow is not None:
            narrow(context, sums, grad)

    run.workspace = prod(dims) * ITEMSIZE[wide] if narrow is not None else 0  # type: ignore[attr-defined]
    return run


def _padding(call: Call) -> int | None:
    padding: int = call.attr("padding_idx")
    return None if padding == NO_PADDING else padding


@register_kernel("gather", "dialect", indexes=True)
def gather(call: Call, context: Context) -> Any:
    """Out[i] = X[Index[i]]."""
    return _take(call, context, "X", "Index", None)


@register_kernel("gather_grad", "dialect", indexes=True)
def gather_grad(call: Call, context: Context) -> Any:
    """X@GRAD[Index[i]] += Out@GRAD[i], from zero."""
    return _add(call, context, "X@GRAD", "Index", None)


@register_kernel("lookup_table", "dialect", indexes=True)
def lookup_table(call: Call, context: Context) -> Any:
    """Out[..., :] = W[Ids[..., 0]], zero where the id is ``padding_idx``."""
    return _take(call, context, "W", "Ids", _padding(call))


@register_kernel("lookup_table_grad", "dialect", indexes=True)
def lookup_table_grad(call: Call, context: Context) -> Any:
    """W@GRAD[Ids[i]] += Out@GRAD[i], from zero, without the rows of ``padding_idx``."""
    return _add(call, context, "W@GRAD", "Ids", _padding(call))


_ONE_HOT = """
  const index_t chosen = x[gid];
  if (chosen < 0 || chosen >= depth) bad_index(status, op_id, chosen, depth);
  for (index_t j = 0; j < depth; ++j) { $store }
"""


@register_kernel("one_hot", "dialect", indexes=True)
def one_hot(call: Call, context: Context) -> Any:
    """Out[..., X[..., 0]] = 1, the rest 0."""
    dtype, depth, rows = call.dtype("Out"), call.attr("depth"), prod(call.dims("X"))
    kernel = build(
        context, f"one_hot_{dtype}", [Buffer("x", call.dtype("X")), Buffer("out", dtype, True), _STATUS],
        ["depth", "op_id"], _ONE_HOT, {"store": store(context, dtype, "out[gid * depth + j]", "j == chosen ? 1 : 0")},
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        kernel(context, rows, (io.span("X"), io.span("Out"), context.status_span()), (depth, io.op_id), dealt(rows))

    return run


# The best so far stand sorted in the output; a later one moves up past those that are less, so equal ones keep
# the order of their columns, and NaN, which is less than all, comes last.
_TOP_K = """
  const index_t at = gid * n, to = gid * k;
  index_t kept = 0;
  for (index_t j = 0; j < n; ++j) {
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
  $values
"""


@register_kernel("top_k", "dialect")
def top_k(call: Call, context: Context) -> Any:
    """The ``k`` greatest of each row, descending, and their columns; of equal ones the first, NaN last."""
    dims, k, dtype = call.dims("X"), call.attr("k"), call.dtype("X")
    rows, n = prod(dims[:-1]), dims[-1]
    stored, values = MOVED[ITEMSIZE[dtype]], call.has("Out")
    buffers = [Buffer("x", dtype), Buffer("indices", "int64", True)]
    words = {
        "T": ctype(context, compute_dtype(dtype)), "x": load(dtype, "x[at + j]"),
        "last": load(dtype, "x[at + indices[to + k - 1]]"), "before": load(dtype, "x[at + indices[to + p - 1]]"),
        "nan": " || (z != z && y == y)" if "float" in dtype else "",
        "values": "for (index_t p = 0; p < k; ++p) out[to + p] = x[at + indices[to + p]];" if values else "",
    }  # fmt: skip
    if values:
        buffers.append(Buffer("out", dtype, True))
    kernel = build(context, f"top_k_{dtype}_{stored}", buffers, ["n", "k"], _TOP_K, words)

    def run(context: Context, io: IO) -> None:
        if io.has("Indices"):
            indices = io.span("Indices")
        else:
            assert io.workspace is not None
            indices = io.workspace.span()
        spans = [io.span("X"), indices, *([io.span("Out")] if values else [])]
        kernel(context, rows, spans, (n, k), dealt(rows))

    run.workspace = 0 if call.has("Indices") else rows * k * 8  # type: ignore[attr-defined]
    return run
