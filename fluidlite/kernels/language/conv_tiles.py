"""Sources of the direct convolution kernels: copying images to planes, packing filters, and two GEMMs in registers.

A **plane** is one channel of an image, padded with zeros and cut into its phases: with a stride of s in a dim, the
elements i, i + s, i + 2 s, ... are contiguous. Then, for any stride, tap t of the window at position
q = (d * rows + h) * pitch + w reads element offset[t] + q of the plane: a convolution is a GEMM with an operand whose
rows start at those offsets, read in vectors along q. Positions between the end of a row of windows and ``pitch`` are
computed and not stored.
"""

from __future__ import annotations

from fluidlite.plugin import Context

from .source import Buffer, CompiledKernel, build, cached_per_context, ctype, load, store

PLANE_PADDING = 64
"""Zeros after a plane: the widest vector tile that may start at its last window."""
FILTER_TILE = 4
"""Filter elements that a work-item of the filter's gradient computes, for as many output channels or for one."""


def lanes_of(dtype: str) -> int:
    """Return the elements of a vector."""
    return 8 if dtype == "float64" else 16


# Planes and filters ------------------------------------------------------------------------------------------------

_PLANES = """
  index_t rest = gid;
  const index_t h = rest % rows; rest /= rows;
  const index_t d = rest % depth; rest /= depth;
  const index_t pw = rest % w_phases; rest /= w_phases;
  const index_t ph = rest % h_phases; rest /= h_phases;
  const index_t pd = rest % d_phases; rest /= d_phases;
  const index_t c = rest % channels, n = rest / channels;
  const index_t z = d_least + pd + d_stride * d, y = h_least + ph + h_stride * h, x0 = w_least + pw;
  index_t to = (n * channels + c) * plane
      + ((((pd * h_phases + ph) * w_phases + pw) * depth + d) * rows + h) * pitch;
  index_t low = pitch, high = pitch;
  if (z >= 0 && z < d_size && y >= 0 && y < h_size) {
    low = x0 < 0 ? ($stride - 1 - x0) / $stride : 0;
    high = w_size > x0 ? (w_size - x0 + $stride - 1) / $stride : 0;
    if (high > pitch) high = pitch;
    if (low > high) low = high;
  }
  const index_t from = base + n * n_step + c * c_step + z * d_step + y * h_step + x0 * $step;
  for (index_t j = 0; j < low; ++j) planes[to + j] = 0;
  for (index_t j = low; j < high; ++j) planes[to + j] = $load;
  for (index_t j = high; j < pitch; ++j) planes[to + j] = 0;
  if (h == rows - 1 && d == depth - 1 && pw == w_phases - 1 && ph == h_phases - 1 && pd == d_phases - 1)
    for (index_t j = 0; j < $slack; ++j) planes[to + pitch + j] = 0;
"""


@cached_per_context
def planes_kernel(context: Context, dtype: str, wide: str, unit: bool, strided: bool) -> CompiledKernel:
    """Return the kernel that copies an image to planes; a work-item copies one row.

    ``unit``: whether the elements of a row are contiguous. ``strided``: whether the stride of windows is not 1.
    """
    stride, step = "w_stride" if strided else "1", "1" if unit else "w_step"
    at = "from + j" + (f" * {stride}" if strided else "") + ("" if unit else f" * {step}")
    words = {"stride": stride, "step": step, "slack": str(PLANE_PADDING), "load": load(dtype, f"image[{at}]")}
    numbers = [
        *("base", "channels", "plane", "depth", "rows", "pitch", "n_step", "c_step", "d_step", "h_step", "w_step"),
        *(f"{dim}_{what}" for what in ("size", "least", "stride", "phases") for dim in "dhw"),
    ]
    buffers = [Buffer("image", dtype), Buffer("planes", wide, True)]
    return build(context, f"conv_planes_{dtype}", buffers, numbers, _PLANES, words)


_OFFSETS = """
  index_t rest = gid, e, at = 0;
  e = rest % w_taps * w_reach + w_shift; rest /= w_taps;
  at += e % w_stride * w_phase + e / w_stride * w_row;
  e = rest % h_taps * h_reach + h_shift; rest /= h_taps;
  at += e % h_stride * h_phase + e / h_stride * h_row;
  e = rest * d_reach + d_shift;
  at += e % d_stride * d_phase + e / d_stride * d_row;
  offset[gid] = at;
"""


@cached_per_context
def offsets_kernel(context: Context) -> CompiledKernel:
    """Return the kernel that computes the offset of each tap in a plane; a work-item computes one tap."""
    numbers = [f"{dim}_{what}" for what in ("reach", "shift", "stride", "phase", "row", "taps") for dim in "dhw"]
    return build(context, "conv_offsets", [Buffer("offset", "int64", True)], numbers, _OFFSETS)


_PACK = """
  const index_t parts = (inner + $run - 1) / $run, tiles = (m + tile - 1) / tile;
  const index_t rest = gid / parts, c0 = (gid - rest * parts) * $run, g = rest / tiles, row = (rest - g * tiles) * tile;
  const index_t c1 = c0 + $run < inner ? c0 + $run : inner;
  for (index_t d = 0; d < d_taps; ++d)
    for (index_t h = 0; h < h_taps; ++h)
      for (index_t w = 0; w < w_taps; ++w) {
        const index_t from = g * g_step + (d_tap + d * d_tap_step) * d_row + (h_tap + h * h_tap_step) * h_row
            + w_tap + w * w_tap_step;
        const index_t to = ((rest * d_taps + d) * h_taps + h) * w_taps + w;
        for (index_t c = c0; c < c1; ++c)
          for (index_t i = 0; i < tile; ++i) {
            const index_t at = from + (row + i < m ? row + i : m - 1) * m_step + c * c_step;
            packed[(to * inner + c) * tile + i] = $load;
          }
      }
"""
PACK_SIZE = 16
"""Channels that a work-item packs."""


@cached_per_context
def pack_kernel(context: Context, dtype: str, wide: str) -> CompiledKernel:
    """Return the kernel that packs a filter to [groups, tiles, taps, channels, tile].

    Padding rows repeat the last row; their results are not stored.
    """
    numbers = [
        *("tile", "inner", "m", "d_taps", "h_taps", "w_taps", "g_step", "m_step", "c_step", "d_row", "h_row"),
        *(f"{dim}_{what}" for what in ("tap", "tap_step") for dim in "dhw"),
    ]
    buffers = [Buffer("filter", dtype), Buffer("packed", wide, True)]
    words = {"load": load(dtype, "filter[at]"), "run": str(PACK_SIZE)}
    return build(context, f"conv_pack_{dtype}", buffers, numbers, _PACK, words)


# The correlation ---------------------------------------------------------------------------------------------------

_CORRELATE = """
  const index_t row_tiles = (m + $rows - 1) / $rows, column_tiles = (positions + $width - 1) / $width;
  index_t rest = gid / row_tiles;
  const index_t tile = gid - rest * row_tiles, i = tile * $rows;
  const index_t ng = rest / column_tiles, q = (rest - ng * column_tiles) * $width;
  const index_t n = ng / groups, g = ng - n * groups;
  $declare
  $buffer const $T* w = packed + (g * row_tiles + tile) * taps * inner * $rows;
  $buffer const $T* start = planes + ng * inner * plane + q;
  for (index_t t = 0; t < taps; ++t) {
    $buffer const $T* p = start + offset[t];
    for (index_t c = 0; c < inner; ++c, p += plane, w += $rows) {
      $multiply
    }
  }
  const index_t at = base + n * n_step + (g * m + i) * c_step;
  const index_t line = q / pitch, w0 = q - line * pitch, d0 = line / rows_of_plane, h0 = line - d0 * rows_of_plane;
  const int flat = solid && q + $width <= positions;
  $store
"""

_SEGMENTS = """
  if (i + $r < m) {
    $T edge[$width];
    $spill
    index_t v = 0, d = d0, h = h0, x = w0;
    while (v < $width && d < d_count) {
      const index_t run = w_count - x < $width - v ? w_count - x : $width - v;
      if (h < h_count) {
        const index_t to = at + $r * c_step + d * d_step + h * h_step + x * $step;
        for (index_t j = 0; j < run; ++j) { $one }
      }
      v += pitch - x;
      x = 0;
      if (++h == rows_of_plane) { h = 0; ++d; }
    }
  }
"""


@cached_per_context
def correlate_kernel(context: Context, dtype: str, out: str, rows: int, count: int, unit: bool) -> CompiledKernel:
    """Return the kernel that multiplies a packed filter by planes.

    ``dtype``, ``out``: the dtypes of the computation and of the output.
    ``rows``, ``count``: output channels and vectors of positions that a work-item computes.
    ``unit``: whether the outputs of a row are contiguous.
    """
    tile = tile_of(context, dtype, rows, count)
    step = "1" if unit else "w_step"
    stores = []
    for r in range(rows):
        element_store = store(context, out, "out[to + j" + ("" if unit else f" * {step}") + "]", "edge[v + j]")
        text = _SEGMENTS.replace("$spill", tile.spill(r)).replace("$one", element_store).replace("$step", step)
        text = text.replace("$r", str(r))
        direct = tile.direct(r, f"out + at + {r} * c_step + q") if unit and out == dtype else ""
        stores.append(f"if (flat) {{ if (i + {r} < m) {{ {direct} }} }} else {text}" if direct else text)
    words = {
        "T": ctype(context, dtype),
        "rows": str(rows),
        "width": str(tile.width),
        "declare": tile.declare(),
        "multiply": tile.multiply(),
        "store": "\n".join(stores).replace("$width", str(tile.width)).replace("$T", ctype(context, dtype)),
    }
    numbers = [
        *("m", "positions", "groups", "taps", "inner", "plane", "pitch", "rows_of_plane", "solid", "d_count"),
        *("h_count", "w_count", "base", "n_step", "c_step", "d_step", "h_step", "w_step"),
    ]
    buffers = [Buffer("planes", dtype), Buffer("packed", dtype), Buffer("offset", "int64"), Buffer("out", out, True)]
    return build(context, f"conv_{rows}x{count}_{dtype}_{out}", buffers, numbers, _CORRELATE, words)


# The filter's gradient ---------------------------------------------------------------------------------------------

_FILTER = """
  const index_t columns = inner * taps, column_tiles = (columns + $fit - 1) / $fit;
  const index_t row_tiles = (m + $rows - 1) / $rows, rest = gid / column_tiles;
  const index_t j = (gid - rest * column_tiles) * $fit, g = rest / row_tiles, i = (rest - g * row_tiles) * $rows;
  $declare
  $begin
  for (index_t n = 0; n < images; ++n) {
    $pointers
    for (index_t q = 0; q < positions; q += $lanes) {
      $multiply
    }
  }
  $store
"""


@cached_per_context
def filter_kernel(context: Context, dtype: str, rows: int) -> CompiledKernel:
    """Return the kernel of the filter's gradient: for each filter element, a sum over images and positions."""
    lanes = lanes_of(dtype)
    kind, space = ctype(context, dtype), context.language.keywords["buffer"]
    fma = context.language.math.get("fma")
    vectors = bool(context.language.vector)
    vector = context.language.vector.format(type=kind, width=lanes) if vectors else kind
    pairs = [(r, s) for r in range(rows) for s in range(FILTER_TILE)]
    begin, pointers = [], []
    for s in range(FILTER_TILE):
        last = f"(j + {s} < columns ? j + {s} : columns - 1)"
        begin.append(
            f"const index_t c{s} = {last} / taps, o{s} = offset[{last} - c{s} * taps] + (g * inner + c{s}) * plane;"
        )
        pointers.append(f"{space} const {kind}* p{s} = planes + n * groups * inner * plane + o{s};")
    for r in range(rows):
        last = f"(i + {r} < m ? i + {r} : m - 1)"
        pointers.append(f"{space} const {kind}* y{r} = windows + ((n * groups + g) * m + {last}) * window_plane;")
    if vectors:
        declare = " ".join(f"{vector} a{r}_{s} = ({vector})(0);" for r, s in pairs)
        lines = [f"const {vector} b{s} = vload{lanes}(0, p{s} + q);" for s in range(FILTER_TILE)]
        for r in range(rows):
            lines.append(f"{{ const {vector} y = vload{lanes}(0, y{r} + q);")
            lines += [
                f"a{r}_{s} = {fma}(y, b{s}, a{r}_{s});" if fma else f"a{r}_{s} += y * b{s};" for s in range(FILTER_TILE)
            ]
            lines.append("}")
    else:
        declare = " ".join(f"{kind} a{r}_{s}[{lanes}];" for r, s in pairs)
        declare += f" for (int v = 0; v < {lanes}; ++v) {{ " + " ".join(f"a{r}_{s}[v] = 0;" for r, s in pairs) + " }"
        products = " ".join(f"a{r}_{s}[v] += y{r}[q + v] * p{s}[q + v];" for r, s in pairs)
        lines = [f"for (int v = 0; v < {lanes}; ++v) {{ {products} }}"]
    stores = []
    for r, s in pairs:
        spill = f"{kind} e[{lanes}]; vstore{lanes}(a{r}_{s}, 0, e);" if vectors else f"{kind}* e = a{r}_{s};"
        stores.append(
            f"if (i + {r} < m && j + {s} < columns) {{ {spill} {kind} sum = 0; "
            f"for (int v = 0; v < {lanes}; ++v) sum += e[v]; "
            f"const index_t to = (g * m + i + {r}) * columns + j + {s}; out[to] = add ? out[to] + sum : sum; }}"
        )
    words = {
        "fit": str(FILTER_TILE),
        "rows": str(rows),
        "lanes": str(lanes),
        "declare": declare,
        "begin": "\n  ".join(begin),
        "pointers": "\n    ".join(pointers),
        "multiply": "\n      ".join(lines),
        "store": "\n  ".join(stores),
    }
    numbers = ["m", "inner", "taps", "groups", "images", "positions", "plane", "window_plane", "add"]
    buffers = [Buffer("planes", dtype), Buffer("windows", dtype), Buffer("offset", "int64"), Buffer("out", dtype, True)]
    return build(context, f"conv_filter_{rows}_{dtype}", buffers, numbers, _FILTER, words)


# Tiles -------------------------------------------------------------------------------------------------------------


def tile_of(context: Context, dtype: str, rows: int, count: int) -> _VectorTile | _ArrayTile:
    """Return the text of a tile of ``rows`` by ``count`` vectors."""
    if context.language.vector:
        return _VectorTile(context, dtype, rows, count)
    return _ArrayTile(ctype(context, dtype), rows, lanes_of(dtype) * count)


class _VectorTile:
    """Text of a tile in vector variables, with OpenCL's functions for loads, stores and the multiply-add."""

    def __init__(self, context: Context, dtype: str, rows: int, count: int) -> None:
        self.lanes, self.rows, self.columns = lanes_of(dtype), range(rows), range(count)
        self.width = self.lanes * count
        self.kind = context.language.vector.format(type=ctype(context, dtype), width=self.lanes)
        self.fma = context.language.math.get("fma")

    def declare(self) -> str:
        return " ".join(f"{self.kind} a{r}_{v} = ({self.kind})(0);" for r in self.rows for v in self.columns)

    def multiply(self) -> str:
        lines = [f"const {self.kind} b{v} = vload{self.lanes}({v}, p);" for v in self.columns]
        for r in self.rows:
            lines.append(f"{{ const {self.kind} y = ({self.kind})(w[{r}]);")
            lines += [
                f"a{r}_{v} = {self.fma}(y, b{v}, a{r}_{v});" if self.fma else f"a{r}_{v} += y * b{v};"
                for v in self.columns
            ]
            lines.append("}")
        return "\n      ".join(lines)

    def spill(self, row: int) -> str:
        return " ".join(f"vstore{self.lanes}(a{row}_{v}, {v}, edge);" for v in self.columns)

    def direct(self, row: int, pointer: str) -> str:
        return " ".join(f"vstore{self.lanes}(a{row}_{v}, {v}, {pointer});" for v in self.columns)


class _ArrayTile:
    """Text of a tile in arrays with constant bounds, which a C compiler can vectorize."""

    def __init__(self, kind: str, rows: int, width: int) -> None:
        self.kind, self.rows, self.width = kind, rows, width

    def declare(self) -> str:
        zeros = " ".join(f"a{r}[v] = 0;" for r in range(self.rows))
        names = " ".join(f"{self.kind} a{r}[{self.width}];" for r in range(self.rows))
        return f"{names} for (int v = 0; v < {self.width}; ++v) {{ {zeros} }}"

    def multiply(self) -> str:
        scalars = " ".join(f"const {self.kind} y{r} = w[{r}];" for r in range(self.rows))
        products = " ".join(f"a{r}[v] += y{r} * b;" for r in range(self.rows))
        return f"{scalars} for (int v = 0; v < {self.width}; ++v) {{ const {self.kind} b = p[v]; {products} }}"

    def spill(self, row: int) -> str:
        return f"for (int v = 0; v < {self.width}; ++v) edge[v] = a{row}[v];"

    def direct(self, row: int, pointer: str) -> str:
        return f"for (int v = 0; v < {self.width}; ++v) ({pointer})[v] = a{row}[v];"
