"""Rows of a matrix that indices name: reading, adding, replacing, in dialect words.

Kernels of tensors see them as matrices [rows, width]. What differs is how entry ``i`` of the index finds its row;
a :class:`Find` says that as text. An index out of range is recorded in the status word, and its entry is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Context, Span, compute_dtype

from .source import MOVED, Buffer, Kernel, build, dealt, load, wrapping
from .strided import mover

CHUNK = 2048
"""Longest part of a row that one item copies."""
SHORT = 8
"""Of how many rows, at least, an item copies whole ones."""
NOWHERE = -(2**63)
"""A padding that no index is."""
COLUMNS = 512
"""Columns that one item writes."""
BLOCK = 64
"""Entries of the index whose rows are found at once."""
PARTS = 4
"""Into how many parts the rows of a matrix are dealt out to items that each read the whole index."""


@dataclass(frozen=True)
class Find:
    """How entry ``i`` of the index, number ``e`` of its ``group``, finds its row.

    ``text`` sets ``row`` and ``fine``, and where it is not fine ``wrong`` and ``bound`` for the error, or
    ``padded``. Entries and rows fall into ``groups`` of equal sizes: an entry's row is in its own group.
    """

    key: str
    slot: str
    dtype: str
    text: str
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    groups: int
    entries: int
    rows: int


def plain_find(slot: str, dtype: str, bound: int, count: int, padding: int = NOWHERE, groups: int = 1) -> Find:
    """``index[i]`` is a row; of each group of rows anew, if there are several."""
    start = "" if groups == 1 else " + group * bound"
    text = f"""
    const index_t wrong = index[e], row = wrong{start};
    const int padded = wrong == padding, fine = !padded && wrong >= 0 && wrong < bound;"""
    key = "plain" if groups == 1 else "grouped"
    return Find(key, slot, dtype, text, ("bound", "padding"), (bound, padding), groups, count, bound)


def nd_find(slot: str, dtype: str, dims: Sequence[int], count: int, rows: int) -> Find:
    """``index[i]`` holds an index for each of ``dims``."""
    depth = len(dims)
    lines = ["index_t row = 0, wrong = 0, bound = 1; int fine = 1, padded = 0;"]
    for axis in range(depth):
        lines.append(
            f"{{ const index_t here = index[i * {depth} + {axis}]; row = row * d{axis} + here;\n"
            f"      if (fine && (here < 0 || here >= d{axis})) {{ fine = 0; wrong = here; bound = d{axis}; }} }}"
        )
    names = tuple(f"d{axis}" for axis in range(depth))
    return Find(f"nd{depth}", slot, dtype, "\n    ".join(lines), names, tuple(dims), 1, count, rows)


def each_find(slot: str, dtype: str, dims: tuple[int, int, int], bound: int) -> Find:
    """``index`` is [outer, count, inner] of indices along the middle axis of [outer, ``bound``, inner]."""
    outer, count, inner = dims
    row = "group * bound + wrong" if inner == 1 else "(group * bound + wrong) * inner + e - e / inner * inner"
    text = f"""
    const index_t wrong = index[i], row = {row};
    int padded = 0, fine = wrong >= 0 && wrong < bound;"""
    names, numbers = (("bound",), (bound,)) if inner == 1 else (("bound", "inner"), (bound, inner))
    key = "each_one" if inner == 1 else "each"
    return Find(key, slot, dtype, text, names, numbers, outer, count * inner, bound * inner)


# Long rows are cut, so that an item copies a part of one; of short ones, an item copies several.
_TAKE = """
  const index_t i = gid / parts, from = (gid - i * parts) * $chunk;
  const index_t to = from + $chunk < width ? from + $chunk : width, group = i / entries, e = i - group * entries;
  $find
  if (!fine && !padded && from == 0) bad_index(status, op_id, wrong, bound);
  if (fine$keep) {
    for (index_t j = from; j < to; ++j) out[i * width + j] = x[row * width + j];
  } else {
    for (index_t j = from; j < to; ++j) out[i * width + j] = 0;
  }
"""

# Of each group that an item reaches into, all indices are checked first, so that the copies do not wait for that.
_TAKE_SHORT = """
  const index_t end = (gid + 1) * several < total ? (gid + 1) * several : total;
  index_t from = gid * several, group = from / entries;
  while (from < end) {
    const index_t to = (group + 1) * entries < end ? (group + 1) * entries : end;
    int bad = 0;
    for (index_t i = from; i < to; ++i) {
      const index_t e = i - group * entries;
      $find
      bad |= !fine && !padded;
    }
    if (bad)
      for (index_t i = from; i < to; ++i) {
        const index_t e = i - group * entries;
        $find
        if (!fine && !padded) bad_index(status, op_id, wrong, bound);
      }
    for (index_t i = from; i < to; ++i) {
      const index_t e = i - group * entries;
      $find
      $copy
    }
    from = to;
    ++group;
  }
"""

_COPY = """if (fine$keep) {
        for (index_t j = 0; j < width; ++j) out[i * width + j] = x[row * width + j];
      } else {
        for (index_t j = 0; j < width; ++j) out[i * width + j] = 0;
      }"""


class Taker:
    """Copies the row of each entry, or zeros; with ``last``, of an entry only that is the last to name its row."""

    def __init__(self, context: Context, find: Find, dtype: str, width: int, last: bool = False) -> None:
        moved = MOVED[ITEMSIZE[dtype]]
        buffers = [Buffer("x", moved), Buffer("index", find.dtype), Buffer("out", moved, True)]
        if last:
            buffers.append(Buffer("last", "int32"))
        self.find = find
        entries, keep = find.groups * find.entries, " && last[row] == i" if last else ""
        short = width * SHORT <= CHUNK
        numbers: tuple[int, ...]
        if not short:
            text, names = Template(_TAKE).safe_substitute(chunk=CHUNK), ["width", "parts", "entries"]
            parts = -(-width // CHUNK)
            numbers, self.items = (width, parts, find.entries), entries * parts
        else:
            copy = _COPY if width != 1 else "out[i] = fine$keep ? x[row] : 0;"
            text, names = Template(_TAKE_SHORT).safe_substitute(copy=copy), ["width", "several", "total", "entries"]
            several = max(CHUNK // max(width, 1), 1)
            numbers, self.items = (width, several, entries, find.entries), -(-entries // several)
        form = "one" if width == 1 else "short" if short else "long"
        self.kernel = build(
            context, f"take_{form}_{find.key}_{moved}{'_last' if last else ''}",
            [*buffers, Buffer("status", "int64", True)], [*names, *find.names, "op_id"], text,
            {"find": find.text, "keep": keep},
        )  # fmt: skip
        self.numbers = (*numbers, *find.numbers)

    def __call__(self, context: Context, io: IO, x: Span, out: Span, last: Span | None = None) -> None:
        spans = [x, io.span(self.find.slot), out, *([last] if last is not None else []), context.status_span()]
        self.kernel(context, self.items, spans, (*self.numbers, io.op_id), dealt(self.items))


_WRITE = """
  const index_t chunks = (width + $lanes - 1) / $lanes, block = gid / chunks, j = (gid - block * chunks) * $lanes;
  const index_t group = block / parts, part = block - group * parts;
  const index_t end = (group + 1) * group_rows, first = group * group_rows + part * step;
  const index_t last = first + step < end ? first + step : end;
  const int lanes = width - j < $lanes ? (int)(width - j) : $lanes;
  for (index_t r = first; r < last; ++r)
    for (int v = 0; v < lanes; ++v) out[r * width + j + v] = $start;
  $passes
"""

_WRITE_ONE = """
  const index_t group = gid / parts, part = gid - group * parts;
  const index_t end = (group + 1) * group_rows, first = group * group_rows + part * step;
  const index_t last = first + step < end ? first + step : end;
  index_t j = 0;
  for (index_t r = first; r < last; ++r) out[r] = $start;
  $passes
"""

# The rows of some entries are found at once, so that what they are is not asked one by one.
_PASS = """for (index_t next = 0; next < entries; next += $block) {
    const int some = entries - next < $block ? (int)(entries - next) : $block;
    index_t rows[$block];
    int bad = 0;
    for (int v = 0; v < some; ++v) {
      const index_t e = next + v, i = group * entries + e;
      $find
      rows[v] = fine ? row : -1;
      bad |= !fine && !padded;
    }
    if (bad && part == 0 && j == 0)
      for (int v = 0; v < some; ++v) {
        const index_t e = next + v, i = group * entries + e;
        $find
        if (!fine && !padded) bad_index(status, op_id, wrong, bound);
      }
    for (int u = 0; u < some; ++u) {
      const index_t i = group * entries + next + u, row = rows[u];
      if (row >= first && row < last) $apply
    }
  }
"""


class Writer:
    """Writes at the row of each entry, in the order of the entries.

    An item owns 512 columns of a part of the rows and reads the index in order: sums repeat bit for bit, and the last
    write stays, without atomics, at the cost of reading the index width / 512 * parts times.

    Parameters
    ----------
    find : Find
    dtypes : (dtype of ``x`` and ``y``, dtype in which ``out`` is written)
    width : int
    start : str
        What ``out`` is before: ``"0"``, ``"x"`` or a number.
    writes : sequence of str
        What each entry does to its row, one pass over the entries each: ``"= 0"``, ``"= y"``, ``"+= y"``, ``"= i"``.
    """

    def __init__(
        self, context: Context, find: Find, dtypes: tuple[str, str], width: int, start: str, writes: Sequence[str]
    ) -> None:
        given, written = dtypes
        moving = given == written and not any("+" in write for write in writes)
        kinds = (MOVED[ITEMSIZE[given]],) * 2 if moving else dtypes
        reads_x, reads_y = start == "x", any("y" in write for write in writes)
        target = "out[row * width + j + v]" if width != 1 else "out[row]"
        each = ("for (int v = 0; v < lanes; ++v) " if width != 1 else "") + target + " {};"
        value = load(kinds[0], "y[i * width + j + v]" if width != 1 else "y[i]")
        added = "= " + wrapping(context, kinds[1], "+").format(target, value)
        applied = [each.format(added if write == "+= y" else write.replace("y", value)) for write in writes]
        passes = [Template(_PASS).substitute(find=find.text, apply=apply, block=BLOCK) for apply in applied]
        base = load(kinds[0], "x[r * width + j + v]" if width != 1 else "x[r]")
        words = {"start": base if reads_x else start, "passes": "  ".join(passes), "lanes": str(COLUMNS)}
        buffers = [Buffer("index", find.dtype), *([Buffer("x", kinds[0])] if reads_x else [])]
        buffers += [*([Buffer("y", kinds[0])] if reads_y else []), Buffer("out", kinds[1], True)]
        how = "_".join(write.replace("+=", "add").replace("=", "set").replace(" ", "") for write in writes)
        self.find = find
        self.kernel: Kernel = build(
            context, f"write_{find.key}_{'one' if width == 1 else 'many'}_{how}_{kinds[0]}",
            [*buffers, Buffer("status", "int64", True)],
            ["width", "group_rows", "entries", "parts", "step", *find.names, "op_id"],
            _WRITE if width != 1 else _WRITE_ONE, words,
        )  # fmt: skip
        chunks = -(-width // COLUMNS)
        wanted = max(PARTS // max(find.groups * chunks, 1), 1) if find.groups > 1 else PARTS
        step = max(-(-find.rows // wanted), 1)
        parts = -(-find.rows // step)
        self.numbers = (width, find.rows, find.entries, parts, step, *find.numbers)
        self.items = find.groups * parts * chunks

    def __call__(self, context: Context, io: IO, out: Span, x: Span | None = None, y: Span | None = None) -> None:
        given = [span for span in (x, y) if span is not None]
        spans = [io.span(self.find.slot), *given, out, context.status_span()]
        self.kernel(context, self.items, spans, (*self.numbers, io.op_id), 1)


def adder(
    context: Context, find: Find, dtype: str, width: int, out: str, y: str, x: str | None = None, anew: bool = False
) -> Any:
    """Return the run that sets slot ``out`` to slot ``x`` (or zero) plus the rows of slot ``y``, each at its row.

    ``anew``: a row that is named starts from zero. Half types add in float32, in a workspace.
    """
    wide = compute_dtype(dtype)
    writes = ["= 0", "+= y"] if anew else ["+= y"]
    write = Writer(context, find, (dtype, wide), width, "0" if x is None else "x", writes)
    size = find.groups * find.rows * width
    narrow = mover(context, wide, dtype, (size,), (1,), (1,)) if wide != dtype else None

    def run(context: Context, io: IO) -> None:
        target = sums = io.span(out)
        if narrow is not None:
            assert io.workspace is not None
            sums = io.workspace.span()
        write(context, io, sums, None if x is None else io.span(x), io.span(y))
        if narrow is not None:
            narrow(context, sums, target)

    run.workspace = size * ITEMSIZE[wide] if narrow is not None else 0  # type: ignore[attr-defined]
    return run
