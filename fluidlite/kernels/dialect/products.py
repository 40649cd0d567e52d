"""cos_sim and conv_shift with gradients: a row, or 16 neighbours, an item."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .source import LANES, Buffer, build, ctype, dealt, function, load, row_reduction, store

# cos_sim -----------------------------------------------------------------------------------------------------------

_COS = """
  const index_t a = gid * n, b = y_rows == 1 ? 0 : a;
  $xx
  $yy
  $xy
  const $T least = ($T)1e-8;
  const $T x_size = $sqrt(xx <= least ? least : xx), y_size = $sqrt(yy <= least ? least : yy);
  if (gid < rows) { $x_norm $out }
  if (gid < y_rows) { $y_norm }
"""


def _add(acc: str, value: str) -> str:
    return f"{acc} += {value};"


@register_kernel("cos_sim", "dialect")
def cos_sim(call: Call, context: Context) -> Any:
    """Out = X . Y / (|X| |Y|) of each row."""
    (rows, *inner), dtype, y_rows = call.dims("X"), call.dtype("X"), call.dims("Y")[0]
    kind, n = ctype(context, compute_dtype(dtype)), prod(inner)

    def product(name: str, left: str, right: str) -> str:
        def value(j: str) -> str:
            return f"{load(dtype, f'{left} + {j}]')} * {load(dtype, f'{right} + {j}]')}"

        return row_reduction(kind, name, "0", _add, value)

    x, y = "x[a", "y[b"
    results = {"Out": ("out", "xy / (x_size * y_size)"), "XNorm": ("x_norm", "x_size"), "YNorm": ("y_norm", "y_size")}
    wanted = [slot for slot in results if call.has(slot)]
    stores = {name: store(context, dtype, f"{name}[gid]", value) if slot in wanted else ""
              for slot, (name, value) in results.items()}  # fmt: skip
    kernel = build(
        context, f"cos_sim_{dtype}",
        [Buffer("x", dtype), Buffer("y", dtype), *(Buffer(results[slot][0], dtype, True) for slot in wanted)],
        ["n", "rows", "y_rows"], _COS,
        {
            "T": kind, "xx": product("xx", x, x), "yy": product("yy", y, y), "xy": product("xy", x, y),
            "sqrt": function(context, "sqrt", dtype), **stores,
        },
    )  # fmt: skip
    # without rows of X one of Y may still want its norm: then any memory will do for X
    slots, items = ("X" if rows else "Y", "Y", *wanted), max(rows, y_rows)

    def run(context: Context, io: IO) -> None:
        kernel(context, items, [io.span(slot) for slot in slots], (n, rows, y_rows), dealt(items))

    return run


_COS_GRAD = """
  const index_t a = gid * n, b = y_rows == 1 ? 0 : a, c = y_rows == 1 ? 0 : gid;
  const $T g = $dout, z = $out, xn = $x_norm, yn = $y_norm;
  const $T both = g / (xn * yn), own = g * z / ($norm * $norm);
  for (index_t j = 0; j < n; ++j) { $put }
"""

_COS_GRAD_ROW = """
  const int width = n - gid * $lanes < $lanes ? (int)(n - gid * $lanes) : $lanes;
  const index_t from = gid * $lanes;
  const $T yn = $y_norm;
  $T sum[$lanes], its = 0;
  for (int v = 0; v < $lanes; ++v) sum[v] = 0;
  for (index_t row = 0; row < rows; ++row) {
    const $T g = $dout, xn = $x_norm, both = g / (xn * yn);
    its += g * $out / (yn * yn);
    const index_t at = row * n + from;
    if (width == $lanes) for (int v = 0; v < $lanes; ++v) sum[v] += both * $x;
    else for (int v = 0; v < width; ++v) sum[v] += both * $x;
  }
  for (int v = 0; v < width; ++v) { $put }
"""


@register_kernel("cos_sim_grad", "dialect")
def cos_sim_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD (Y / (|X| |Y|) - Out X / |X|^2), and so of Y."""
    (rows, *inner), dtype, y_rows = call.dims("X"), call.dtype("X"), call.dims("Y")[0]
    n, kind = prod(inner), ctype(context, compute_dtype(dtype))
    names = ("x", "y", "out", "x_norm", "y_norm", "dout")
    slots = ("X", "Y", "Out", "XNorm", "YNorm", "Out@GRAD")
    buffers = [Buffer(name, dtype) for name in names]
    steps = []

    def words(row: str, y_row: str) -> dict[str, str]:
        scalars = {name: load(dtype, f"{name}[{row}]") for name in ("out", "dout", "x_norm")}
        return {"T": kind, "lanes": str(LANES), **scalars, "y_norm": load(dtype, f"y_norm[{y_row}]")}

    for slot, grad, mine, other, norm in (("X@GRAD", "dx", "x[a", "y[b", "xn"), ("Y@GRAD", "dy", "y[b", "x[a", "yn")):
        if not call.has(slot):
            continue
        target = [*buffers, Buffer(grad, dtype, True)]
        if slot == "Y@GRAD" and y_rows == 1:
            value = f"sum[v] - its * {load(dtype, 'y[from + v]')}"
            special = {"x": load(dtype, "x[at + v]"), "put": store(context, dtype, "dy[from + v]", value)}
            kernel = build(context, f"cos_sim_grad_row_{dtype}", target, ["n", "rows"], _COS_GRAD_ROW,
                           {**words("row", "0"), **special})  # fmt: skip
            steps.append((kernel, slot, -(-n // LANES), (n, rows)))
            continue
        value = f"both * {load(dtype, other + ' + j]')} - own * {load(dtype, mine + ' + j]')}"
        special = {"norm": norm, "put": store(context, dtype, f"{grad}[a + j]", value)}
        kernel = build(context, f"cos_sim_grad_{grad}_{dtype}", target, ["n", "y_rows"], _COS_GRAD,
                       {**words("gid", "c"), **special})  # fmt: skip
        steps.append((kernel, slot, rows, (n, y_rows)))

    def run(context: Context, io: IO) -> None:
        given = [io.span(slot) for slot in slots]
        for kernel, slot, items, numbers in steps:
            kernel(context, items, [*given, io.span(slot)], numbers, dealt(items))

    return run


# conv_shift --------------------------------------------------------------------------------------------------------

_SHIFT = """
  const index_t chunks = (width + $lanes - 1) / $lanes;
  const index_t row = gid / chunks, j = (gid - row * chunks) * $lanes, at = row * width;
  const int here = width - j < $lanes ? (int)(width - j) : $lanes;
  $T sum[$lanes];
  for (int v = 0; v < $lanes; ++v) sum[v] = 0;
  for (index_t k = 0; k < count; ++k) {
    const $T weight = $y;
    index_t from = j + $shift;
    if (from < 0) from += width;
    if (from >= width) from -= width;
    if (here == $lanes && from + $lanes <= width) {
      for (int v = 0; v < $lanes; ++v) sum[v] += weight * $x_in;
    } else {
      for (int v = 0; v < here; ++v) {
        const index_t to = from + v < width ? from + v : from + v - width;
        sum[v] += weight * $x_to;
      }
    }
  }
  for (int v = 0; v < here; ++v) { $put }
"""

_SHIFT_FILTER = """
  const index_t row = gid / count, k = gid - row * count, at = row * width;
  index_t first = k - count / 2;
  if (first < 0) first += width;
  $T sum = 0;
  { const index_t a = at + first, b = at, n = width - first; $head sum += head; }
  { const index_t a = at, b = at + width - first, n = first; $tail sum += tail; }
  $put
"""


def _shift(call: Call, context: Context, given: str, made: str, back: bool) -> Any:
    """Return the launch that filters ``given``, forwards or back, into ``made``."""
    (rows, width), count, dtype = call.dims("X"), call.dims("Y")[1], call.dtype("X")
    kernel = build(
        context, f"conv_shift{'_back' * back}_{dtype}",
        [Buffer("x", dtype), Buffer("y", dtype), Buffer("out", dtype, True)], ["width", "count"], _SHIFT,
        {
            "T": ctype(context, compute_dtype(dtype)), "lanes": str(LANES), "y": load(dtype, "y[row * count + k]"),
            "shift": "count / 2 - k" if back else "k - count / 2", "x_in": load(dtype, "x[at + from + v]"),
            "x_to": load(dtype, "x[at + to]"), "put": store(context, dtype, "out[at + j + v]", "sum[v]"),
        },
    )  # fmt: skip
    items = rows * -(-width // LANES)

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span(given), io.span("Y"), io.span(made)), (width, count), dealt(items))

    return run


@register_kernel("conv_shift", "dialect")
def conv_shift(call: Call, context: Context) -> Any:
    """Out[:, j] = the sum over k of X[:, j + k - half] Y[:, k]."""
    return _shift(call, context, "X", "Out", back=False)


@register_kernel("conv_shift_grad", "dialect")
def conv_shift_grad(call: Call, context: Context) -> Any:
    """X@GRAD by the filter turned round, Y@GRAD as products of rows."""
    (rows, width), count, dtype = call.dims("X"), call.dims("Y")[1], call.dtype("X")
    steps = []
    if call.has("X@GRAD"):
        steps.append(_shift(call, context, "Out@GRAD", "X@GRAD", back=True))
    if call.has("Y@GRAD"):
        kind = ctype(context, compute_dtype(dtype))

        def part(name: str) -> str:
            return row_reduction(
                kind, name, "0", _add, lambda j: f"{load(dtype, f'x[a + {j}]')} * {load(dtype, f'dout[b + {j}]')}"
            )

        kernel = build(
            context, f"conv_shift_filter_{dtype}",
            [Buffer("x", dtype), Buffer("dout", dtype), Buffer("dy", dtype, True)], ["width", "count"], _SHIFT_FILTER,
            {"T": kind, "head": part("head"), "tail": part("tail"), "put": store(context, dtype, "dy[gid]", "sum")},
        )  # fmt: skip
        items = rows * count

        def filters(context: Context, io: IO) -> None:
            spans = (io.span("X"), io.span("Out@GRAD"), io.span("Y@GRAD"))
            kernel(context, items, spans, (width, count), dealt(items))

        steps.append(filters)

    def run(context: Context, io: IO) -> None:
        for step in steps:
            step(context, io)

    return run
