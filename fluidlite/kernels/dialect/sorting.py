"""argsort, top_k, arg_max and arg_min, with gradients: by value, then by index, NaN last in a sort."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, compute_dtype, register_kernel

from .merge_sort import MergeSort, Pairs, pairs, pairs_bytes
from .rows import Writer, each_find
from .source import LANES, Buffer, build, ctype, dealt, load
from .strided import mover

FEW = 16
"""Lines under which one is divided into parts."""
LEAST = 2048
"""Elements that a part has at least."""


def _split(lines: int, n: int) -> int:
    """Into how many parts each line is divided, so that several items have work."""
    return 1 if lines >= FEW else max(min(FEW // max(lines, 1), n // LEAST), 1)


def _around(dims: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    return prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])


# argsort -----------------------------------------------------------------------------------------------------------


@register_kernel("argsort", "dialect")
def argsort(call: Call, context: Context) -> Any:
    """X in order along ``axis``, NaN last, and where each element was.

    Along the last axis the outputs are one of the two buffers; along another, both hold whole lines before the
    result is turned.
    """
    dims, dtype = call.dims("X"), call.dtype("X")
    outer, n, inner = _around(dims, call.attr("axis") % len(dims))
    size, width = prod(dims), ITEMSIZE[dtype]
    sort = MergeSort(context, dtype, outer, n, inner, call.attr("descending"))
    both = call.has("Out") and call.has("Indices")
    turn = [(slot, mover(context, kind, kind, (outer, inner, n), (n * inner, n, 1), (n * inner, 1, inner)))
            for slot, kind in (("Out", dtype), ("Indices", "int64")) if call.has(slot)]  # fmt: skip

    def run(context: Context, io: IO) -> None:
        assert io.workspace is not None
        space = io.workspace.span()
        spare, used = pairs(space, 0, size, width)
        mine = pairs(space, used, size, width)[0] if not both else None
        keys = io.span("Out") if io.has("Out") else mine.keys if mine else space
        places = io.span("Indices") if io.has("Indices") else mine.places if mine else space
        given = Pairs(keys, places)
        if inner == 1:
            sort(context, io.span("X"), given, spare)
            return
        sort(context, io.span("X"), spare, given)
        for slot, move in turn:
            move(context, spare.keys if slot == "Out" else spare.places, io.span(slot))

    run.workspace = pairs_bytes(size, width) * (1 if both else 2)  # type: ignore[attr-defined]
    return run


def _along_axis(call: Call, context: Context, axis: int) -> Any:
    """X@GRAD = Out@GRAD at Indices along ``axis``, else 0; an index comes once a line."""
    dims, dtype = call.dims("X@GRAD"), call.dtype("X@GRAD")
    outer, n, inner = _around(dims, axis)
    find = each_find("Indices", call.dtype("Indices"), (outer, call.dims("Indices")[axis], inner), n)
    write = Writer(context, find, (dtype, dtype), 1, "0", ["= y"])
    return lambda context, io: write(context, io, io.span("X@GRAD"), None, io.span("Out@GRAD"))


@register_kernel("argsort_grad", "dialect", indexes=True)
def argsort_grad(call: Call, context: Context) -> Any:
    """X@GRAD[Indices[i]] = Out@GRAD[i] along the axis."""
    return _along_axis(call, context, call.attr("axis") % len(call.dims("X@GRAD")))


@register_kernel("top_k_grad", "dialect", indexes=True)
def top_k_grad(call: Call, context: Context) -> Any:
    """X@GRAD[..., Indices[..., j]] = Out@GRAD[..., j], else 0."""
    return _along_axis(call, context, len(call.dims("X@GRAD")) - 1)


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
        "T": ctype(context, compute_dtype(dtype)), "x": load(dtype, "x[at + j]"),
        "last": load(dtype, "x[at + indices[to + k - 1]]"), "before": load(dtype, "x[at + indices[to + p - 1]]"),
        "nan": " || (z != z && y == y)" if "float" in dtype else "",
        "column": "chosen[row * count + c]" if chosen else "c",
        "values": "for (index_t p = 0; p < k; ++p) out[to + p] = x[at + indices[to + p]];" if values else "",
    }  # fmt: skip
    if values:
        buffers.append(Buffer("out", dtype, True))
    name = f"top_k{'_chosen' if chosen else ''}_{dtype}_{'values' if values else 'indices'}"
    return build(context, name, buffers, ["n", "k", "parts", "step", "count"], _TOP_K, words)


@register_kernel("top_k", "dialect")
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
            found = space._replace(offset=space.offset + given, nbytes=space.nbytes - given)
            first(context, rows * parts, (io.span("X"), found), (n, k, parts, step, n), 1)
            spans, numbers = [io.span("X"), found, indices], (n, k, 1, parts * k, parts * k)
        whole(context, rows, [*spans, *([io.span("Out")] if values else [])], numbers, dealt(rows))

    run.workspace = given + (rows * parts * k * 8 if parts > 1 else 0)  # type: ignore[attr-defined]
    return run


# arg_max, arg_min --------------------------------------------------------------------------------------------------

# Sixteen lanes side by side, for a compiler to put into vectors: of neighbours on the axis where that is the last one,
# else of neighbouring lines.
_ARG_LINE = """
  const index_t line = gid / parts, first = (gid - line * parts) * step;
  const int count = (int)(n - first < step ? n - first : step);
  const index_t from = line * n + first;
  $T best[$lanes];
  int at[$lanes];
  for (int v = 0; v < $lanes; ++v) { best[v] = $start; at[v] = 0; }
  int j = 0;
  for (; j + $lanes <= count; j += $lanes)
    for (int v = 0; v < $lanes; ++v) {
      const $T y = $lane, z = best[v];
      const int better = $better;
      best[v] = better ? y : z;
      at[v] = better ? j + v : at[v];
    }
  for (; j < count; ++j) {
    const $T y = $one, z = best[0];
    if ($better) { best[0] = y; at[0] = j; }
  }
  for (int v = 1; v < $lanes; ++v) {
    const $T y = best[v], z = best[0];
    if ($better || (at[v] < at[0] && !($worse))) { best[0] = y; at[0] = at[v]; }
  }
  out[gid] = ($O)(first + at[0]);
"""

_ARG_LINES = """
  const index_t chunks = (inner + $lanes - 1) / $lanes, block = gid / chunks, lane = (gid - block * chunks) * $lanes;
  const index_t outer = block / parts, first = (block - outer * parts) * step;
  const int count = (int)(n - first < step ? n - first : step);
  const int lanes = inner - lane < $lanes ? (int)(inner - lane) : $lanes;
  const index_t from = (outer * n + first) * inner + lane;
  $T best[$lanes];
  int at[$lanes];
  for (int v = 0; v < lanes; ++v) { best[v] = $start; at[v] = 0; }
  for (int j = 1; j < count; ++j)
    if (lanes == $lanes) {
      for (int v = 0; v < $lanes; ++v) {
        const $T y = $lane, z = best[v];
        const int better = $better;
        best[v] = better ? y : z;
        at[v] = better ? j : at[v];
      }
    } else {
      for (int v = 0; v < lanes; ++v) {
        const $T y = $lane, z = best[v];
        if ($better) { best[v] = y; at[v] = j; }
      }
    }
  for (int v = 0; v < lanes; ++v) out[block * inner + lane + v] = ($O)(first + at[v]);
"""

_ARG_PARTS = """
  const index_t outer = gid / inner, lane = gid - outer * inner;
  index_t at = found[outer * parts * inner + lane];
  $T z = $start;
  for (index_t p = 1; p < parts; ++p) {
    const index_t here = found[(outer * parts + p) * inner + lane];
    const $T y = $lane;
    if ($better) { z = y; at = here; }
  }
  out[gid] = ($O)at;
"""


def _arg(call: Call, context: Context, sign: str) -> Any:
    dims, dtype, kind = call.dims("X"), call.dtype("X"), call.dtype("Out")
    shape = (1, prod(dims), 1) if call.attr("flatten") else _around(dims, call.attr("axis") % len(dims))
    outer, n, inner = shape
    work = outer * -(-inner // LANES)
    parts = _split(work, n)
    step = -(-n // parts)
    parts = -(-n // step)
    words = {
        "T": ctype(context, compute_dtype(dtype)), "better": f"(y {sign} z)", "worse": f"z {sign} y",
        "lanes": str(LANES),
    }  # fmt: skip
    if "float" in dtype:  # not less or equal: also where y is NaN; nothing beats a NaN
        other = "<=" if sign == ">" else ">="
        words |= {"better": f"(!(y {other} z) & (z == z))", "worse": f"(!(z {other} y) & (y == y))"}
    way = "max" if sign == ">" else "min"

    def kernel(name: str, text: str, at: dict[str, str], out: str, found: bool, numbers: list[str]) -> Any:
        buffers = [Buffer("x", dtype), *([Buffer("found", "int64")] if found else []), Buffer("out", out, True)]
        mine = {**words, "O": ctype(context, out), **{word: load(dtype, f"x[{place}]") for word, place in at.items()}}
        return build(context, f"arg{way}_{name}_{dtype}_{out}", buffers, numbers, text, mine)

    first = kind if parts == 1 else "int64"
    sizes: tuple[int, ...]
    if inner == 1:
        at = {"start": "from", "lane": "from + j + v", "one": "from + j"}
        search = kernel("line", _ARG_LINE, at, first, False, ["n", "parts", "step"])
        items, sizes = outer * parts, (n, parts, step)
    else:
        at = {"start": "from + v", "lane": "from + j * inner + v"}
        search = kernel("lines", _ARG_LINES, at, first, False, ["n", "inner", "parts", "step"])
        items, sizes = work * parts, (n, inner, parts, step)
    if parts > 1:
        at = {"start": "(outer * n + at) * inner + lane", "lane": "(outer * n + here) * inner + lane"}
        join = kernel("parts", _ARG_PARTS, at, kind, True, ["n", "inner", "parts"])

    def run(context: Context, io: IO) -> None:
        x, out = io.span("X"), io.span("Out")
        if parts == 1:
            search(context, items, (x, out), sizes, dealt(items))
            return
        assert io.workspace is not None
        found = io.workspace.span()
        search(context, items, (x, found), sizes, 1)
        join(context, outer * inner, (x, found, out), (n, inner, parts))

    run.workspace = outer * parts * inner * 8 if parts > 1 else 0  # type: ignore[attr-defined]
    return run


@register_kernel("arg_max", "dialect")
def arg_max(call: Call, context: Context) -> Any:
    """Where the largest is; the first of equal ones, the first NaN if there is one."""
    return _arg(call, context, ">")


@register_kernel("arg_min", "dialect")
def arg_min(call: Call, context: Context) -> Any:
    """Where the least is; the first of equal ones, the first NaN if there is one."""
    return _arg(call, context, "<")
