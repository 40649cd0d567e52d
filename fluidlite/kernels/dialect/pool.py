"""pool2d, pool3d and the maxima with their places, with gradients.

An item makes a run of a row: of the last spatial dim, or of the channels where they come last, which no window
spans. Outside of the run there are always three dims, those that are missing being of size 1; of each dim a kernel is
told its size ``n``, its count ``o`` of windows, and their ``k``, ``s`` and ``p`` (kernel, stride, padding before).
"""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import (
    IO,
    ITEMSIZE,
    Call,
    Context,
    PoolAxis,
    compute_dtype,
    pool_axes,
    pool_planes,
    register_kernel,
)

from .pool_max_grad import greatest_grad
from .reducing import reducer
from .source import HEAVY, Buffer, build, ctype, load, store
from .strided import mover, steps_of

LANES = 64
"""Elements of a run."""
NAMES = ("a", "b", "c", "l")
"""The three dims outside of the run, and the run's own."""

_LOWEST = {
    "float16": "-65504.0f", "bfloat16": "-3.3895314e38f", "float32": "-3.402823466e38f",
    "float64": "-1.7976931348623157e308",
}  # fmt: skip
"""What windows without elements have."""

_LEAST = {"float32": "fl_bits_float32(0xff800000u)", "float64": "fl_bits_float64(0xfff0000000000000UL)"}
"""Minus infinity; not every dialect has a word for it."""


class Frame:
    """What the kernels of a call have in common: the dims' numbers, and text about them."""

    def __init__(self, call: Call) -> None:
        axes = pool_axes(call)
        self.outer, inner = pool_planes(call)
        regular = [axis.regular for axis in axes]
        self.adaptive = any(axis.adaptive for axis in regular)
        self.axes = list(axes) if self.adaptive else regular
        self.size, self.count = prod(axis.size for axis in axes), prod(axis.outs for axis in axes)
        self.whole = all(a.outs == 1 and a.kernel == a.size and not a.before for a in regular)
        self.inner = inner
        self.spans = inner == 1  # whether windows span the run
        if not self.spans:
            self.axes.append(PoolAxis(inner, inner, 1, 1, 0, self.adaptive))
        one = PoolAxis(1, 1, 1, 1, 0, self.adaptive)
        self.axes = [one] * (4 - len(self.axes)) + self.axes
        self.numbers = [number for axis in self.axes for number in axis[:5]]
        self.names = [f"{word}{name}" for name in NAMES for word in "noksp"]
        unit = not self.adaptive and self.axes[-1].stride == 1
        self.key = f"{'adaptive' if self.adaptive else 'unit' if unit else 'windows'}{'' if self.spans else '_last'}"
        self.unit = unit

    @property
    def wide(self) -> bool:
        """Whether windows have enough rows, of which an item can hold what it covers."""
        axis = self.axes[-1]
        return prod(axis.kernel for axis in self.axes[:-1]) > 2 and (LANES - 1) * axis.stride + axis.kernel <= ROOM

    def window(self, name: str, o: str, to: str = "") -> str:
        """Text that declares the part [``<to>0``, ``<to>1``) of a dim that window ``o`` covers."""
        to, n = to or name, f"n{name}"
        if self.adaptive:
            return f"const index_t {to}0 = ({o}) * {n} / o{name}, {to}1 = ((({o}) + 1) * {n} + o{name} - 1) / o{name};"
        return (
            f"index_t {to}0 = ({o}) * s{name} - p{name}, {to}1 = {to}0 + k{name}; "
            f"{to}0 = {to}0 < 0 ? 0 : {to}0; {to}1 = {to}1 < {n} ? {to}1 : {n}; {to}1 = {to}1 < {to}0 ? {to}0 : {to}1;"
        )

    def covering(self, name: str, first: str, last: str) -> str:
        """Text that declares the windows [``q<name>0``, ``q<name>1``) that hold elements ``first`` to ``last``."""
        low, high, n, o = f"q{name}0", f"q{name}1", f"n{name}", f"o{name}"
        if self.adaptive:
            return f"const index_t {low} = ({first}) * {o} / {n}, {high} = ((({last}) + 1) * {o} + {n} - 1) / {n};"
        return (
            f"index_t {low} = ({first}) + p{name} - k{name} + 1, {high} = (({last}) + p{name}) / s{name} + 1; "
            f"{low} = {low} <= 0 ? 0 : ({low} + s{name} - 1) / s{name}; {high} = {high} < {o} ? {high} : {o};"
        )

    def rows(self, of: str) -> str:
        """Text that splits ``gid`` into the run's beginning ``l0``, its ``width``, its row, and the row's place."""
        return f"""
  const index_t runs = ({of}l + {LANES - 1}) / {LANES};
  index_t rest = gid / runs;
  const index_t start = (gid - rest * runs) * {LANES};
  const int width = {of}l - start < {LANES} ? (int)({of}l - start) : {LANES};
  const index_t to = rest * {of}l + start;
  index_t next = rest / {of}c; const index_t c = rest - next * {of}c; rest = next;
  next = rest / {of}b; const index_t b = rest - next * {of}b; rest = next;
  next = rest / {of}a; const index_t a = rest - next * {of}a;
  const index_t outer = next;"""

    def items(self, of: int) -> int:
        """How many runs there are of X (``of`` 0) or of Out (1)."""
        return self.outer * prod(axis[of] for axis in self.axes[:3]) * -(-self.axes[3][of] // LANES)

    def loops(self) -> str:
        """Text of loops over the rows of the windows at (a, b, c): x0, y0, z0 and on, with the row's place ``row``."""
        return "for (index_t x = x0; x < x1; ++x) for (index_t y = y0; y < y1; ++y) for (index_t z = z0; z < z1; ++z)"


_FORWARD = """
  $rows
  $windows
  $T acc[$lanes];
  $places_declared
  for (int v = 0; v < width; ++v) { acc[v] = $first; $places_start }
  $loops {
    const index_t row = ((x * nb + y) * nc + z) * nl;
    $GLOBAL const $stored* line = x_in + outer * na * nb * nc * nl + row;
    $lane_loops
  }
  for (int v = 0; v < width; ++v) {
    $lane_window
    const index_t count = (x1 - x0) * (y1 - y0) * (z1 - z0) * $lane_count;
    $finish
  }
"""

_GREATEST_OF_ROWS = """
  $rows
  $windows
  const index_t first = start * sl - pl, most = (width - 1) * sl + kl;
  const index_t low = first < 0 ? -first : 0, high = nl - first < most ? nl - first : most;
  $T above[$room];
  for (index_t u = 0; u < most; ++u) above[u] = $first;
  $loops {
    $GLOBAL const $stored* line = x_in + ((outer * na + x) * nb + y) * nc * nl + z * nl + first;
    for (index_t u = low; u < high; ++u) { const $T e = $element; above[u] = e > above[u] || e != e ? e : above[u]; }
  }
  for (index_t v = 0; v < width; ++v) {
    $T acc = above[v * sl];
    for (index_t u = 1; u < kl; ++u) {
      const $T e = above[v * sl + u];
      acc = e > acc || e != e ? e : acc;
    }
    $lane_window
    const index_t count = (x1 - x0) * (y1 - y0) * (z1 - z0) * (w1 - w0);
    $stores
  }
"""
"""The greatest of the rows of a window, and then along: rows are read in vectors, whatever the stride."""
ROOM = 4 * LANES
"""Elements of such a row that one item holds."""

_LANES_WINDOWS = """
    for (index_t k = 0; k < kl; ++k) {
      const index_t shift = k - pl + start * sl;
      index_t v0 = shift >= 0 ? 0 : (sl - 1 - shift) / sl, v1 = nl - 1 - shift < 0 ? 0 : (nl - 1 - shift) / sl + 1;
      v1 = v1 < width ? v1 : width;
      for (index_t v = v0; v < v1; ++v) { const index_t at = v * $step + shift; $take }
    }"""

_LANES_ADAPTIVE = """
    for (int v = 0; v < width; ++v) {
      $lane_window
      for (index_t at = w0; at < w1; ++at) { $take }
    }"""

_LANES_LAST = """
    for (int v = 0; v < width; ++v) { const index_t at = start + v; $take }"""


def _forward(call: Call, context: Context, kind: str, places: bool) -> Any:
    """One kernel for the greatest (with places or without) and for the mean."""
    frame, dtype = Frame(call), call.dtype("X")
    if frame.whole and not places:
        dims, average = (frame.outer, frame.size, frame.inner), kind == "avg"
        made = reducer(context, "sum" if average else "max", dtype, dtype, dims, (1,), frame.size if average else 0)

        def run_whole(context: Context, io: IO) -> None:
            made.run(context, io.span("X"), io.span("Out"), io.workspace.span() if io.workspace is not None else None)

        run_whole.workspace = made.workspace  # type: ignore[attr-defined]
        return run_whole

    wide = ctype(context, compute_dtype(dtype))
    greatest = kind == "max"
    value = load(dtype, "line[at]")
    outs = [slot for slot in ("Out", "Mask") if call.has(slot)]
    buffers = [Buffer("x_in", dtype)]
    buffers += [Buffer({"Out": "out", "Mask": "mask"}[slot], call.dtype(slot), True) for slot in outs]
    if not greatest:
        take = f"acc[v] += {value};"
    elif places:
        take = (
            f"const {wide} e = {value}; const int more = e > acc[v] || (place[v] < 0 && e == acc[v]); "
            "place[v] = more ? (int)(row + at) : e != e ? -1 : place[v]; acc[v] = more || e != e ? e : acc[v];"
        )
    else:
        take = f"const {wide} e = {value}; acc[v] = e > acc[v] || e != e ? e : acc[v];"
    finish = []
    if "Out" in outs:
        exclusive = not greatest and (call.attr("exclusive") or call.attr("adaptive"))
        made_of = f"count > 0 ? acc[v] : ({wide}){_LOWEST[dtype]}"
        if not greatest:
            made_of = f"acc[v] / ({wide}){'count' if exclusive else '(ka * kb * kc * kl)'}"
        finish.append(store(context, dtype, "out[to + v]", made_of))
    if "Mask" in outs:
        finish.append("mask[to + v] = place[v];")
    lane_window = frame.window("l", "start + v", "w") if frame.spans else ""
    by_rows = greatest and not places and frame.spans and not frame.adaptive and frame.wide
    lanes = _LANES_LAST if not frame.spans else _LANES_ADAPTIVE if frame.adaptive else _LANES_WINDOWS
    words = {
        "T": wide, "stored": ctype(context, dtype), "GLOBAL": context.dialect.words["buffer"], "lanes": str(LANES),
        "rows": frame.rows("o"), "loops": frame.loops(),
        "windows": "\n  ".join(frame.window(n, n, w) for n, w in zip(NAMES, "xyz", strict=False)),
        "first": _LEAST[compute_dtype(dtype)] if greatest else "0",
        "places_declared": f"int place[{LANES}];" if places else "", "places_start": "place[v] = -1;" if places else "",
        "lane_loops": lanes, "lane_window": lane_window, "lane_count": "(w1 - w0)" if frame.spans else "1",
        "take": take, "step": "1" if frame.unit else "sl", "finish": " ".join(finish),
    }  # fmt: skip
    words["lane_loops"] = _filled(lanes, words)
    words |= {"room": str(ROOM), "element": load(dtype, "line[u]"),
              "stores": " ".join(finish).replace("acc[v]", "acc")}  # fmt: skip
    name = f"pool_{kind}_{'_'.join(outs).lower()}_{'rows' if by_rows else frame.key}_{dtype}"
    kernel = build(context, name, buffers, frame.names, _GREATEST_OF_ROWS if by_rows else _FORWARD, words)
    items = frame.items(1)

    def run(context: Context, io: IO) -> None:
        kernel(context, items, [io.span("X"), *map(io.span, outs)], frame.numbers, HEAVY)

    return run


def _filled(text: str, words: dict[str, str]) -> str:
    """``text`` with its words replaced, where a word may itself hold words."""
    for name in sorted(words, key=len, reverse=True):
        text = text.replace(f"${name}", words[name])
    return text


@register_kernel("pool2d", "dialect")
def pool2d(call: Call, context: Context) -> Any:
    """Out = the greatest or the mean of each window."""
    return _forward(call, context, call.attr("pooling_type"), places=False)


@register_kernel("pool3d", "dialect")
def pool3d(call: Call, context: Context) -> Any:
    """Out = the greatest or the mean of each window."""
    return _forward(call, context, call.attr("pooling_type"), places=False)


@register_kernel("max_pool2d_with_index", "dialect")
def max_pool2d_with_index(call: Call, context: Context) -> Any:
    """Out = the greatest of each window; Mask = where it is in its plane."""
    return _forward(call, context, "max", places=call.has("Mask"))


@register_kernel("max_pool3d_with_index", "dialect")
def max_pool3d_with_index(call: Call, context: Context) -> Any:
    """Out = the greatest of each window; Mask = where it is in its plane."""
    return _forward(call, context, "max", places=call.has("Mask"))


# Gradients ---------------------------------------------------------------------------------------------------------

_BACKWARD = """
  $rows
  $T acc[$lanes];
  for (int v = 0; v < width; ++v) acc[v] = 0;
  $covering
  $body
  for (int v = 0; v < width; ++v) { $store }
"""

_WINDOWS = """
  for (index_t qa = qa0; qa < qa1; ++qa) for (index_t qb = qb0; qb < qb1; ++qb) for (index_t qc = qc0; qc < qc1; ++qc) {
    const index_t line = (((outer * oa + qa) * ob + qb) * oc + qc) * ol;
    $windows
    $each
  }"""

# Of the windows that begin in one place of the run's dim, those of all rows are added up first.
_MEAN = """
  $T sums[$lanes];
  for (index_t q0 = ql0; q0 < ql1; q0 += $lanes) {
    const int some = ql1 - q0 < $lanes ? (int)(ql1 - q0) : $lanes;
    for (int v = 0; v < some; ++v) sums[v] = 0;
    $each_window
    for (int u = 0; u < some; ++u) {
      const index_t q = q0 + u;
      $lane_window
      sums[u] /= ($T)($lane_count);
    }
    $spread
  }"""

# The k-th elements of all windows, and so on: neighbours in the run do not wait for each other.
_SPREAD = """for (index_t k = 0; k < kl; ++k) {
      const index_t shift = k - pl - start;
      index_t u0 = shift >= 0 ? 0 : (sl - 1 - shift) / sl;
      index_t u1 = width - 1 - shift < 0 ? 0 : (width - 1 - shift) / sl + 1;
      u0 = u0 < q0 ? q0 : u0;
      u1 = u1 < q0 + some ? u1 : q0 + some;
      for (index_t q = u0; q < u1; ++q) acc[q * $step + shift] += sums[q - q0];
    }"""

_SPREAD_ADAPTIVE = """for (int u = 0; u < some; ++u) {
      const index_t q = q0 + u;
      $lane_window
      const index_t v0 = w0 - start < 0 ? 0 : w0 - start, v1 = w1 - start < width ? w1 - start : width;
      for (index_t v = v0; v < v1; ++v) acc[v] += sums[u];
    }"""

_MEAN_EACH = """
    const $T outside = ($T)($count);
    for (int v = 0; v < some; ++v) { const index_t q = q0 + v; sums[v] += $dout / outside; }"""

_MEAN_LAST = """
    const $T outside = ($T)($count);
    for (int v = 0; v < width; ++v) { const index_t q = start + v; acc[v] += $dout / outside; }"""


def _grad(call: Call, context: Context) -> Any:
    """The mean's gradient is divided among a window; the greatest's goes to its first such element."""
    frame, dtype = Frame(call), call.dtype("X")
    if call.attr("pooling_type") == "max":
        return greatest_grad(call, context, frame)
    if frame.whole:
        dims = (frame.outer, frame.size, frame.inner)
        steps = (frame.inner, 0, 1)
        move = mover(context, dtype, dtype, dims, steps, steps_of(dims), 1.0 / frame.size)
        return lambda context, io: move(context, io.span("Out@GRAD"), io.span("X@GRAD"))

    wide = ctype(context, compute_dtype(dtype))
    exclusive = call.attr("exclusive") or call.attr("adaptive")
    lane_window = frame.window("l", "q", "w") if frame.spans else "const index_t w0 = q, w1 = q + 1;"
    covering = [frame.covering(name, name, name) for name in NAMES[:3]]
    covering.append(
        frame.covering("l", "start", "start + width - 1") if frame.spans
        else "const index_t ql0 = start, ql1 = start + width;"
    )  # fmt: skip
    outside = "(x1 - x0) * (y1 - y0) * (z1 - z0)" if exclusive else "ka * kb * kc"
    words = {
        "T": wide, "lanes": str(LANES), "rows": frame.rows("n"), "covering": "\n  ".join(covering),
        "count": outside, "lane_window": lane_window, "lane_count": "w1 - w0" if exclusive else "kl",
        "windows": "\n    ".join(frame.window(n, f"q{n}", w) for n, w in zip(NAMES, "xyz", strict=False)),
        "dout": load(dtype, "dout[line + q]"),
        "store": store(context, dtype, "dx[to + v]", "acc[v]"),
    }  # fmt: skip
    words["step"] = "1" if frame.unit else "sl"
    words["spread"] = _filled(_SPREAD_ADAPTIVE if frame.adaptive else _SPREAD, words)
    each = _MEAN_EACH if frame.spans else _MEAN_LAST
    words["each_window"] = _filled(_WINDOWS, {**words, "each": _filled(each, words)})
    words["body"] = _filled(_MEAN, words) if frame.spans else words["each_window"]
    how = "avg" if exclusive else "avg_inclusive"
    kernel = build(
        context, f"pool_grad_{how}_{frame.key}_{dtype}", [Buffer("dout", dtype), Buffer("dx", dtype, True)],
        frame.names, _BACKWARD, words,
    )  # fmt: skip
    items = frame.items(0)

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span("Out@GRAD"), io.span("X@GRAD")), frame.numbers, HEAVY)

    return run


@register_kernel("pool2d_grad", "dialect")
def pool2d_grad(call: Call, context: Context) -> Any:
    """The gradient goes to the first greatest element of a window, or to all of them."""
    return _grad(call, context)


@register_kernel("pool3d_grad", "dialect")
def pool3d_grad(call: Call, context: Context) -> Any:
    """The gradient goes to the first greatest element of a window, or to all of them."""
    return _grad(call, context)


# A plane an item, so that what one adds to an element follows in a fixed order.
_PLANE = """
  for (index_t i = 0; i < size; ++i) sum[gid * size + i] = 0;
  for (index_t i = 0; i < count; ++i) {
    const index_t at = places[gid * count + i];
    if (at >= 0 && at < size) sum[gid * size + at] += $value;
  }
  $result
"""


def plane_adder(call: Call, context: Context, slot: str, planes: int, size: int, count: int) -> Any:
    """Return the run that adds, in each plane of X@GRAD, each element of Out@GRAD where the indices in ``slot`` say.

    Half types are added in a workspace of float32, and rounded once.
    """
    dtype = call.dtype("Out@GRAD")
    wide = compute_dtype(dtype)
    half = wide != dtype
    result = store(context, dtype, "dx[gid * size + i]", "sum[gid * size + i]")
    kernel = build(
        context, f"plane_add_{dtype}_{call.dtype(slot)}",
        [Buffer("places", call.dtype(slot)), Buffer("dout", dtype), Buffer("sum", wide, True)]
        + ([Buffer("dx", dtype, True)] if half else []), ["size", "count"], _PLANE,
        {"value": load(dtype, "dout[gid * count + i]"),
         "result": f"for (index_t i = 0; i < size; ++i) {{ {result} }}" if half else ""},
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        spans = [io.span(slot), io.span("Out@GRAD"), io.span("X@GRAD")]
        if io.workspace is not None:
            spans.insert(2, io.workspace.span())
        kernel(context, planes, spans, (size, count), HEAVY)

    run.workspace = planes * size * ITEMSIZE[wide] if half else 0  # type: ignore[attr-defined]
    return run


def _indexed_grad(call: Call, context: Context) -> Any:
    frame = Frame(call)
    return plane_adder(call, context, "Mask", frame.outer, frame.size, frame.count)


@register_kernel("max_pool2d_with_index_grad", "dialect")
def max_pool2d_with_index_grad(call: Call, context: Context) -> Any:
    """The gradient goes where Mask says."""
    return _indexed_grad(call, context)


@register_kernel("max_pool3d_with_index_grad", "dialect")
def max_pool3d_with_index_grad(call: Call, context: Context) -> Any:
    """The gradient goes where Mask says."""
    return _indexed_grad(call, context)
