"""A matrix product blocked in registers.

An item computes a tile of 8 rows by one or two vectors of columns and walks along k: eight scalars of A are
broadcast against vectors of B, so sixteen independent sums are under way. A is read with any steps; B must have
contiguous rows, so a transposed B is transposed into the workspace first (K * N moves against M * N * K products).
At the right edge, vectors may reach into the next row of B, whose columns are not stored; only where that would
leave the matrix are elements read one by one. No copy is padded, and no size is in the text.

An epilogue is computed where a tile is stored: a row of results at a time, before any of it is written, so that outputs
may lie on what the epilogue reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.kernel_support import HALVES, EpilogueText
from fluidlite.plugin import Context

from .source import Buffer, Kernel, build, ctype, decode, store

ROWS = 8

_BODY = """
  const index_t row_tiles = (m + $last_row) / $rows, rest = gid / row_tiles;
  const index_t i = (gid - rest * row_tiles) * $rows;
  const index_t column_tiles = (n + $last_column) / $columns, batch = rest / column_tiles;
  const index_t j = (rest - batch * column_tiles) * $columns;
  const int whole = j + $columns <= n;
  index_t a_at = 0, b_at = j, c_at = batch * m * n + j;
  $batches
  const index_t room = (k - 1) * b_row + n - j - $columns;
  const index_t safe = whole ? k : room < 0 ? 0 : room / b_row + 1;
  $declare
  $loops
  $rows_of_a
  $buffer const $T* row = b + b_at$b_steps;
  for (index_t x = 0; x < k; ++x, row += b_row) {
    $vectors
    if (x < safe) { $load }
    else {
      $T edge[$columns];
      for (int v = 0; v < $columns; ++v) edge[v] = j + v < n ? row[v] : 0;
      $load_edge
    }
    $multiply
  }
  $ends
  $store
"""


def gemm(
    context: Context,
    dtype: str,
    out: str,
    columns: int,
    batches: int,
    sums: int,
    epilogue: EpilogueText | None = None,
    guarded: bool = False,
) -> Kernel:
    """Return the kernel for products computed in ``dtype`` and stored as ``out``.

    Its spans are A, B and C, its numbers m, n, k, A's row step, A's column step, B's row step, alpha; then size
    and steps in A and B of each batch axis, and of each axis over which products are summed.

    Parameters
    ----------
    columns : int
        Number of vectors of columns in a tile.
    batches, sums : int
        How many batch axes are kept, and summed.
    epilogue : EpilogueText, optional
        Its buffers stand in place of C, its numbers behind the others.
    guarded : bool
        Whether the status word is the last span, and nothing is stored once it is set.
    """
    lanes = 8 if dtype == "float64" else 16
    width = lanes * columns
    kind = ctype(context, dtype)
    text: _Vectors | _Arrays
    text = _Vectors(context, dtype, lanes, columns) if context.language.vector else _Arrays(kind, width)
    names = [f"{word}{d}" for d in range(batches) for word in ("size", "a_step", "b_step")]
    summed = [f"{word}{d}" for d in range(sums) for word in ("sum", "a_sum", "b_sum")]
    words = {
        "T": kind,
        "rows": str(ROWS),
        "last_row": str(ROWS - 1),
        "columns": str(width),
        "last_column": str(width - 1),
        "batches": decode(
            "batch", [(f"size{d}", (("a_at", f"a_step{d}"), ("b_at", f"b_step{d}"))) for d in range(batches)]
        )
        if batches
        else "",
        "declare": text.declare(),
        "vectors": text.vectors(),
        "load": text.load("row"),
        "load_edge": text.load("edge"),
        "multiply": text.multiply(),
        "loops": " ".join(f"for (index_t r{d} = 0; r{d} < sum{d}; ++r{d})" for d in range(sums)) + " {",
        "ends": "}",
        "rows_of_a": "\n  ".join(
            f"{context.language.keywords['buffer']} const {kind}* p{r} = a + a_at"
            + "".join(f" + r{d} * a_sum{d}" for d in range(sums))
            + f" + (i + {r} < m ? i + {r} : m - 1) * a_row;"
            for r in range(ROWS)
        ),
        "b_steps": "".join(f" + r{d} * b_sum{d}" for d in range(sums)),
    }
    buffers, numbers = [Buffer("a", dtype), Buffer("b", dtype)], [*names, *summed]
    if epilogue is None:
        buffers.append(Buffer("c", out, True))
        words["store"] = "\n  ".join(
            f"if (i + {r} < m) {{ {text.store(r, _stores(context, out, r, width), out == dtype)} }}"
            for r in range(ROWS)
        )
    else:
        buffers += [Buffer(name, stored, written) for name, stored, written, _ in epilogue.buffers]
        words["store"] = _finished(text, epilogue, out, kind, width)
    if guarded:
        buffers.append(Buffer("status", "int64"))
        words["store"] = f"if (status[0] == 0) {{ {words['store']} }}"
    more = [(name, stored) for name, stored, _ in epilogue.numbers] if epilogue is not None else []
    entry = f"gemm_{dtype}_{out}" + ("_with" if epilogue is not None else "") + ("_guarded" if guarded else "")
    return build(
        context,
        entry,
        buffers,
        ["m", "n", "k", "a_row", "a_column", "b_row", ("alpha", dtype), *numbers, *more],
        _BODY,
        words,
        aliased=epilogue is not None,
    )


def _finished(text: _Vectors | _Arrays, epilogue: EpilogueText, out: str, kind: str, width: int) -> str:
    """The statements that compute an epilogue of a tile and store what it gives."""
    value = text.spilled("r", "v")
    given = f"fl_load_{out}(fl_store_{out}({value}))" if out in HALVES else value
    results = " ".join(f"{each} result{k}[{width}];" for k, each in enumerate(epilogue.results))

    def part(count: str) -> str:
        each = f"for (int v = 0; v < {count}; ++v)"
        return (
            f"{results}\n {each} {{ const {kind} given = {given};\n {epilogue.element}\n }}"
            f"\n {each} {{ {epilogue.stores} }}"
        )

    return f"""{text.spill()}
  for (int r = 0; r < {ROWS}; ++r) {{
    if (i + r < m) {{
      const index_t first = c_at + (i + r) * n;
      {epilogue.row}
      if (whole) {{ {part(str(width))} }}
      else {{ const int width = (int)(n - j); {part("width")} }}
    }}
  }}"""


def _stores(context: Context, out: str, row: int, width: int) -> str:
    one = store(context, out, f"c[c_at + (i + {row}) * n + v]", "edge[v]")
    return f"for (int v = 0; v < {width}; ++v) if (j + v < n) {{ {one} }}"


class _Vectors:
    """Tiles in vector variables, with OpenCL's names for loads, stores and the multiply-add."""

    def __init__(self, context: Context, dtype: str, lanes: int, count: int) -> None:
        element = ctype(context, dtype)
        self.element, self.lanes, self.columns = element, lanes, range(count)
        self.kind = context.language.vector.format(type=element, width=lanes)
        self.fma = context.language.math.get("fma")

    def declare(self) -> str:
        return " ".join(f"{self.kind} c{r}_{v} = ({self.kind})(0);" for r in range(ROWS) for v in self.columns)

    def vectors(self) -> str:
        return " ".join(f"{self.kind} b{v};" for v in self.columns)

    def load(self, pointer: str) -> str:
        return " ".join(f"b{v} = vload{self.lanes}({v}, {pointer});" for v in self.columns)

    def multiply(self) -> str:
        lines = []
        for r in range(ROWS):
            lines.append(f"{{ const {self.kind} y = ({self.kind})(p{r}[x * a_column]);")
            lines += [
                f"c{r}_{v} = {self.fma}(y, b{v}, c{r}_{v});" if self.fma else f"c{r}_{v} += y * b{v};"
                for v in self.columns
            ]
            lines.append("}")
        return "\n    ".join(lines)

    def spill(self) -> str:
        width = self.lanes * len(self.columns)
        stores = " ".join(
            f"vstore{self.lanes}(c{r}_{v} * alpha, {r * len(self.columns) + v}, tile);"
            for r in range(ROWS)
            for v in self.columns
        )
        return f"{self.element} tile[{ROWS * width}]; {stores}"

    def spilled(self, row: str, column: str) -> str:
        return f"tile[{row} * {self.lanes * len(self.columns)} + {column}]"

    def store(self, row: int, stores: str, direct: bool) -> str:
        edge = "".join(f" vstore{self.lanes}(c{row}_{v} * alpha, {v}, edge);" for v in self.columns)
        width = self.lanes * len(self.columns)
        one_by_one = f"{self.element} edge[{width}];{edge} {stores}"
        if not direct:
            return one_by_one
        whole = " ".join(
            f"vstore{self.lanes}(c{row}_{v} * alpha, {v}, c + c_at + (i + {row}) * n);" for v in self.columns
        )
        return f"if (whole) {{ {whole} }} else {{ {one_by_one} }}"


class _Arrays:
    """Tiles in arrays with constant bounds, for a C compiler to put into vectors."""

    def __init__(self, element: str, width: int) -> None:
        self.element, self.width = element, width

    def declare(self) -> str:
        zero = self._each(f"for (int r = 0; r < {ROWS}; ++r) tile[r][v] = 0;")
        return f"{self.element} tile[{ROWS}][{self.width}];\n  {zero}"

    def vectors(self) -> str:
        return f"{self.element} b_row_values[{self.width}];"

    def load(self, pointer: str) -> str:
        return self._each(f"b_row_values[v] = {pointer}[v];")

    def multiply(self) -> str:
        return "\n    ".join(
            f"{{ const {self.element} y = p{r}[x * a_column]; {self._each(f'tile[{r}][v] += y * b_row_values[v];')} }}"
            for r in range(ROWS)
        )

    def spill(self) -> str:
        return ""

    def spilled(self, row: str, column: str) -> str:
        return f"tile[{row}][{column}] * alpha"

    def store(self, row: int, stores: str, direct: bool) -> str:
        return f"{self.element} edge[{self.width}]; {self._each(f'edge[v] = tile[{row}][v] * alpha;')} {stores}"

    def _each(self, statement: str) -> str:
        return f"for (int v = 0; v < {self.width}; ++v) {{ {statement} }}"


def columns_for(n: int, dtype: str) -> int:
    """How many vectors wide a tile is: one if that covers all columns."""
    return 1 if n <= (8 if dtype == "float64" else 16) else 2


def tiles(m: int, n: int, dtype: str, batches: Sequence[int]) -> int:
    """Number of items."""
    width = (8 if dtype == "float64" else 16) * columns_for(n, dtype)
    count = -(-m // ROWS) * -(-n // width)
    for size in batches:
        count *= size
    return count


__all__ = ["columns_for", "gemm", "tiles"]
