"""GEMM with register blocking.

A work-item computes a tile of 8 rows by one or two vectors of columns and loops over k: eight scalars of A are
broadcast against vectors of B, which gives sixteen independent sums. A may have any strides. B must have contiguous
rows or be packed: tile after tile, with the columns of a tile contiguous. A transposed B is packed first; so is an
operand that many rows or columns read (K * N copies against M * N * K multiply-adds), A only if it is transposed.
At the right edge, vectors may read over the end of a row of a B that is not packed: those columns are not stored. Only
where such a read would leave the matrix, elements are read one by one. The text contains no sizes.

An epilogue is fused into the store of a tile: it computes a row of results before it writes any of them, so that
outputs may alias the inputs of the epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from string import Template

from fluidlite.kernel_support import HALVES, ITEMSIZE, EpilogueText
from fluidlite.plugin import Context, Span

from .source import (
    REGISTER_SUM_TERMS,
    Buffer,
    CompiledKernel,
    Pack,
    build,
    cached_per_context,
    ctype,
    decode,
    group_size,
    load,
    store,
)

PACKED_ROWS = 64
"""Rows that a work-item packs."""

_BODY = """
  const index_t row_tiles = (m + $last_row) / $rows, rest = gid / row_tiles;
  const index_t row_tile = gid - rest * row_tiles, i = row_tile * $rows;
  const index_t column_tiles = (n + $last_column) / $columns, batch = rest / column_tiles;
  const index_t j = (rest - batch * column_tiles) * $columns;
  const int whole = j + $columns <= n;
  index_t a_at = row_tile * a_tile, b_at = j / $columns * b_tile, c_at = batch * m * n + j;
  $batches
  const index_t room = (k - 1) * b_row + n - j - $columns;
  $T tile[$tile];
  int begun = 0, kept = 0;
  const index_t safe = whole || b_row == $columns ? k : room < 0 ? 0 : room / b_row + 1;
  $declare
  $loops
  $rows_of_a
  $buffer const $T* row = b + b_at$b_steps;
  for (index_t x = 0; x < k;) {
    if (begun) { $keep }
    begun = 1;
    const index_t end = x + $block < k ? x + $block : k;
    for (; x < end; ++x, row += b_row) {
      $vectors
      if (x < safe) { $load }
      else {
        $T edge[$columns];
        for (int v = 0; v < $columns; ++v) edge[v] = j + v < n ? row[v] : 0;
        $load_edge
      }
      $multiply
    }
  }
  $ends
  if (kept) { $finish }
  $store
"""


@cached_per_context
def gemm(
    context: Context,
    dtype: str,
    out: str,
    columns: int,
    batches: int,
    sums: int,
    epilogue: EpilogueText | None = None,
    predicated: bool = False,
) -> CompiledKernel:
    """Return the kernel for products computed in ``dtype`` and stored as ``out``.

    Its spans are A, B and C. Its numbers are m, n, k, the strides of A's rows, columns and row tiles, the strides of
    B's rows and column tiles, and alpha; then the size, the stride in A and the stride in B of each batch axis of the
    output, and of each axis over which products are summed.

    ``columns``: number of vectors of columns in a tile.
    ``batches``, ``sums``: number of batch axes of the output, and of summed axes.
    ``epilogue``: its buffers replace C, and its numbers follow the others.
    ``predicated``: whether the status word is the last span, and the kernel stores nothing once it is set.
    """
    rows, lanes = tile_shape(context, dtype)
    width = lanes * columns
    kind = ctype(context, dtype)
    text: _VectorTile | _ArrayTile
    vector = _vector(context)
    text = _VectorTile(context, dtype, rows, lanes, columns) if vector else _ArrayTile(kind, rows, width)
    names = [f"{word}{d}" for d in range(batches) for word in ("size", "a_step", "b_step")]
    summed = [f"{word}{d}" for d in range(sums) for word in ("sum", "a_sum", "b_sum")]
    words = {
        "T": kind,
        "rows": str(rows),
        "last_row": str(rows - 1),
        "columns": str(width),
        "last_column": str(width - 1),
        "batches": decode(
            "batch", [(f"size{d}", (("a_at", f"a_step{d}"), ("b_at", f"b_step{d}"))) for d in range(batches)]
        )
        if batches
        else "",
        "tile": str(rows * width),
        "block": str(REGISTER_SUM_TERMS),
        "declare": text.declare(),
        "keep": text.flush(),
        "finish": text.add_flushed(),
        "vectors": text.vectors(),
        "load": text.load("row"),
        "load_edge": text.load("edge"),
        "multiply": text.multiply(),
        "loops": " ".join(f"for (index_t r{d} = 0; r{d} < sum{d}; ++r{d})" for d in range(sums)) + " {",
        "ends": "}",
        "rows_of_a": "\n  ".join(
            f"{context.language.keywords['buffer']} const {kind}* p{r} = a + a_at"
            + "".join(f" + r{d} * a_sum{d}" for d in range(sums))
            + f" + (i + {r} < m ? {r} : m - 1 - i) * a_row;"
            for r in range(rows)
        ),
        "b_steps": "".join(f" + r{d} * b_sum{d}" for d in range(sums)),
    }
    buffers, numbers = [Buffer("a", dtype), Buffer("b", dtype)], [*names, *summed]
    each_row = f"for (int r = 0; r < {rows}; ++r) if (i + r < m)"
    if epilogue is None:
        buffers.append(Buffer("c", out, True))
        element_store = store(context, out, "c[c_at + (i + r) * n + v]", f"tile[r * {width} + v] * alpha")
        edge_store = f"{each_row} for (int v = 0; v < {width}; ++v) if (j + v < n) {{ {element_store} }}"
        edge_store = f"{text.spill()} {edge_store}"
        words["store"] = text.store(edge_store) if isinstance(text, _VectorTile) and out == dtype else edge_store
    else:
        buffers += [Buffer(name, stored, written) for name, stored, written, _ in epilogue.buffers]
        words["store"] = f"{text.spill()} {_epilogue_store(each_row, epilogue, out, kind, width)}"
    if predicated:
        buffers.append(Buffer("status", "int64"))
        words["store"] = f"if (status[0] == 0) {{ {words['store']} }}"
    extra = [(name, stored) for name, stored, _ in epilogue.numbers] if epilogue is not None else []
    entry = f"gemm_{dtype}_{out}" + ("_with" if epilogue is not None else "") + ("_guarded" if predicated else "")
    return build(
        context,
        entry,
        buffers,
        ["m", "n", "k", "a_row", "a_column", "a_tile", "b_row", "b_tile", ("alpha", dtype), *numbers, *extra],
        _BODY,
        words,
        aliased=epilogue is not None,
    )


def _epilogue_store(each_row: str, epilogue: EpilogueText, out: str, kind: str, width: int) -> str:
    """Return the statements that compute the epilogue of a tile and store its results."""
    value = f"tile[r * {width} + v] * alpha"
    rounded = f"fl_load_{out}(fl_store_{out}({value}))" if out in HALVES else value
    results = " ".join(f"{declarations} result{k}[{width}];" for k, declarations in enumerate(epilogue.results))

    def loops(count: str) -> str:
        declarations = f"for (int v = 0; v < {count}; ++v)"
        return (
            f"{results}\n {declarations} {{ const {kind} given = {rounded};\n {epilogue.element}\n }}"
            f"\n {declarations} {{ {epilogue.stores} }}"
        )

    return f"""{each_row} {{
    const index_t first = c_at + (i + r) * n;
    {epilogue.row}
    if (whole) {{ {loops(str(width))} }}
    else {{ const int width = (int)(n - j); {loops("width")} }}
  }}"""


class _VectorTile:
    """Text of a tile in vector variables, with OpenCL's functions for loads, stores and the multiply-add."""

    def __init__(self, context: Context, dtype: str, rows: int, lanes: int, count: int) -> None:
        self.rows, self.lanes, self.columns, self.width = rows, lanes, range(count), lanes * count
        self.kind = str(_vector(context)).format(type=ctype(context, dtype), width=lanes)
        self.fma = context.language.math.get("fma")

    def declare(self) -> str:
        return " ".join(f"{self.kind} c{r}_{v} = ({self.kind})(0);" for r in range(self.rows) for v in self.columns)

    def vectors(self) -> str:
        return " ".join(f"{self.kind} b{v};" for v in self.columns)

    def load(self, pointer: str) -> str:
        return " ".join(f"b{v} = vload{self.lanes}({v}, {pointer});" for v in self.columns)

    def multiply(self) -> str:
        lines = []
        for r in range(self.rows):
            lines.append(f"{{ const {self.kind} y = ({self.kind})(p{r}[x * a_column]);")
            lines += [
                f"c{r}_{v} = {self.fma}(y, b{v}, c{r}_{v});" if self.fma else f"c{r}_{v} += y * b{v};"
                for v in self.columns
            ]
            lines.append("}")
        return "\n    ".join(lines)

    def _each(self, statement: str) -> str:
        count = len(self.columns)
        tile = [(r * count + v, f"c{r}_{v}") for r in range(self.rows) for v in self.columns]
        return " ".join(statement.format(at=at, c=c, kind=self.kind, lanes=self.lanes) for at, c in tile)

    def flush(self) -> str:
        """Return the text that adds the sums in registers to those in memory and resets the registers."""
        reset = self._each("{c} = ({kind})(0);")
        return f"if (kept) {{ {self.add_flushed()} }} kept = 1; {self.spill()} {reset}"

    def add_flushed(self) -> str:
        """Return the text that adds the sums in memory to those in registers."""
        return self._each("{c} += vload{lanes}({at}, tile);")

    def spill(self) -> str:
        """Return the text that stores the registers to memory."""
        return self._each("vstore{lanes}({c}, {at}, tile);")

    def store(self, rest: str) -> str:
        """Return the statements that store full rows; ``rest`` stores a tile at the edge."""
        rows = (
            " ".join(f"vstore{self.lanes}(c{r}_{v} * alpha, {v}, c + c_at + (i + {r}) * n);" for v in self.columns)
            for r in range(self.rows)
        )
        full_rows = " ".join(f"if (i + {r} < m) {{ {stores} }}" for r, stores in enumerate(rows))
        return f"if (whole) {{ {full_rows} }} else {{ {rest} }}"


class _ArrayTile:
    """Text of a tile in arrays with constant bounds, which a C compiler can vectorize."""

    def __init__(self, element: str, rows: int, width: int) -> None:
        self.element, self.rows, self.width = element, rows, width

    def declare(self) -> str:
        zero = self._each(f"for (int r = 0; r < {self.rows}; ++r) sums[r][v] = 0;")
        return f"{self.element} sums[{self.rows}][{self.width}];\n  {zero}"

    def vectors(self) -> str:
        return f"{self.element} b_row_values[{self.width}];"

    def load(self, pointer: str) -> str:
        return self._each(f"b_row_values[v] = {pointer}[v];")

    def multiply(self) -> str:
        return "\n    ".join(
            f"{{ const {self.element} y = p{r}[x * a_column]; {self._each(f'sums[{r}][v] += y * b_row_values[v];')} }}"
            for r in range(self.rows)
        )

    def flush(self) -> str:
        reset = self._rows("sums[r][v] = 0;")
        return f"if (kept) {{ {self.add_flushed()} }} kept = 1; {self.spill()} {reset}"

    def add_flushed(self) -> str:
        return self._rows(f"sums[r][v] += tile[r * {self.width} + v];")

    def spill(self) -> str:
        return self._rows(f"tile[r * {self.width} + v] = sums[r][v];")

    def _rows(self, statement: str) -> str:
        return f"for (int r = 0; r < {self.rows}; ++r) {{ {self._each(statement)} }}"

    def _each(self, statement: str) -> str:
        return f"for (int v = 0; v < {self.width}; ++v) {{ {statement} }}"


# Sizes, and packing -------------------------------------------------------------------------------------------------


def _vector(context: Context) -> str | None:
    """Return the format of a vector type, or None if the kernel language has none."""
    named: str | None = context.language.vector
    return named or ("{type}{width}" if context.language.registers else None)


def tile_shape(context: Context, dtype: str) -> tuple[int, int]:
    """Return the rows of a tile and the lanes of a vector: the sums of two vectors of columns fit into registers."""
    if context.language.registers is None:
        return 8, 64 // ITEMSIZE[dtype]
    registers, nbytes = context.language.registers
    return max(1, min(8, (registers - 3) // 2)), min(64, nbytes) // ITEMSIZE[dtype]


def tile_width(context: Context, dtype: str, n: int) -> int:
    """Return the columns of a tile: one vector if it covers all n columns, else two."""
    lanes = tile_shape(context, dtype)[1]
    return lanes if n <= lanes else 2 * lanes


def tile_count(context: Context, dtype: str, m: int, n: int, batches: Sequence[int]) -> int:
    """Return the number of work-items."""
    return -(-m // tile_shape(context, dtype)[0]) * -(-n // tile_width(context, dtype, n)) * prod(batches)


_PACK = """
  const index_t parts = (k + $part - 1) / $part, tiles = (n + $width - 1) / $width;
  const index_t rest = gid / parts, x0 = (gid - rest * parts) * $part, batch = rest / tiles;
  const index_t j = (rest - batch * tiles) * $width, x1 = x0 + $part < k ? x0 + $part : k;
  const int count = n - j < $width ? (int)(n - j) : $width;
  $buffer $T* const to = packed + rest * k * $width;
  $copy
"""
_PACK_ROWS = """$buffer const $S* const from = b + batch * n * k + j;
  if (count == $width)
    for (index_t x = x0; x < x1; ++x)
      for (int v = 0; v < $width; ++v) to[x * $width + v] = $value;
  else
    for (index_t x = x0; x < x1; ++x)
      for (int v = 0; v < $width; ++v) to[x * $width + v] = v < count ? $value : 0;"""
_PACK_T = """$buffer const $S* const from = b + batch * n * k + j * k;
  for (int v = 0; v < $width; ++v)
    for (index_t x = x0; x < x1; ++x) to[x * $width + v] = v < count ? $value : 0;"""
_PACK_T_VECTORS = """$buffer const $S* const from = b + batch * n * k + j * k;
  for (int done = 0; done < $width; done += $lanes) {
    $columns
    for (index_t x = x0; x < x1; ++x) vstore$lanes(($vector)($numbers), 0, to + x * $width + done);
  }"""


@cached_per_context
def _pack_kernel(context: Context, stored: str, dtype: str, width: int, transposed: bool) -> CompiledKernel:
    words = {"T": ctype(context, dtype), "S": ctype(context, stored), "part": str(PACKED_ROWS), "width": str(width)}
    value = load(stored, f"from[{'v * k + x' if transposed else 'x * n + v'}]")
    text, vector, lanes = _PACK_T if transposed else _PACK_ROWS, _vector(context), min(8, tile_shape(context, dtype)[1])
    if transposed and vector is not None and width % lanes == 0:
        text = _PACK_T_VECTORS
        words |= {"lanes": str(lanes), "vector": vector.format(type=words["T"], width=lanes)}
        last = "(done + {0} < count ? done + {0} : count - 1)"
        words["columns"] = " ".join(f"const index_t c{v} = {last.format(v)} * k;" for v in range(lanes))
        words["numbers"] = ", ".join(load(stored, f"from[c{v} + x]") for v in range(lanes))
    copy = Template(text).substitute(words, value=value, buffer=context.language.keywords["buffer"])
    words["copy"] = copy
    name = f"gemm_{'turned' if transposed else 'packed'}_{stored}_{width}"
    return build(context, name, [Buffer("b", stored), Buffer("packed", dtype, True)], ["n", "k"], _PACK, words)


def pack(
    context: Context, stored: str, dtype: str, width: int, n: int, k: int, count: int, transposed: bool
) -> tuple[Pack, int]:
    """Return the function that packs ``count`` matrices [k, n], or [n, k] if ``transposed``, and the elements of one.

    It converts them and packs each to [tiles, k, width]; padding columns of the last tile are zeros or repeat a column.
    """
    kernel = _pack_kernel(context, stored, dtype, width, transposed)
    items = count * -(-n // width) * -(-k // PACKED_ROWS)

    def pack_matrices(context: Context, source: Span, target: Span) -> None:
        kernel(context, items, (source, target), (n, k), group_size(items))

    return pack_matrices, -(-n // width) * k * width
