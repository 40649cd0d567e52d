"""The gradient of max pooling: each window's gradient is added to the first maximum of the window.

A work-item owns a band of a plane. The innermost loop runs along the last spatial dim or, with channels last, along the
channels, which no window spans. The outer dims are always three; missing ones have size 1. For each dim the
arguments are its size ``n``, its number of windows ``o``, and their ``k``, ``s`` and ``p`` (kernel, stride, padding).
"""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE, Kernel, PoolAxis, pool_axes, pool_planes
from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, compute_dtype, register_kernel

from .source import LANES, PER_ITEM, Buffer, build, ctype, load, store

DIM_NAMES = ("a", "b", "c")
"""The dims outside of the innermost loop."""
MAX_PARALLEL_WINDOWS = 64
"""Maximum windows that are compared side by side."""
MAX_SPLIT_ITEMS = 64
"""Work-items up to which planes are split into bands: windows that reach into two bands are searched twice."""
MAX_UNROLLED = 4
"""Maximum stride of windows that are compared side by side, and maximum width of a kernel whose comparison is unrolled:
both are constants in the text."""

# A work-item visits the windows that reach into its band in order, so that sums are reproducible.
_BANDS = """
  const index_t outer = gid / bands, d0 = (gid - outer * bands) * step, d1 = d0 + step < n$d ? d0 + step : n$d;
  const index_t from = d0 * $rest, to = d1 * $rest, plane = outer * na * nb * nc * nl;
  for (index_t i = plane + from; i < plane + to; ++i) sum[i] = 0;
  $covering
  for (index_t qa = qa0; qa < qa1; ++qa) for (index_t qb = qb0; qb < qb1; ++qb) for (index_t qc = qc0; qc < qc1; ++qc) {
    const index_t line = (((outer * oa + qa) * ob + qb) * oc + qc) * ol;
    $windows
    $inside
    index_t q = 0;
    while (q < ol) {
      $abreast
      $singly
    }
  }
  $result
"""

# Windows side by side, without padding: elements are compared from the last to the first, so the first maximum remains.
_PARALLEL_WINDOWS = """if (q >= low && q < high) {
        const int count = high - q < $run ? (int)(high - q) : $run;
        const index_t shift = q * $stride - pl, base = ((x0 * nb + y0) * nc + z0) * nl + shift;
        $T best[$run];
        int place[$run];
        for (int v = 0; v < count; ++v) { best[v] = $best; place[v] = -1; }
        for (index_t x = x1 - 1; x >= x0; --x) for (index_t y = y1 - 1; y >= y0; --y)
          for (index_t z = z1 - 1; z >= z0; --z) $over {
            const index_t row = ((x * nb + y) * nc + z) * nl + shift, first = plane + row$start;
            const int here = (int)(row$start - base);
            for (int v = 0; v < count; ++v) {
              const $T given = best[v];
              int found = place[v];
              $compare
              place[v] = found;
            }
          }
        for (int v = 0; v < count; ++v) {
          const index_t at = base + place[v] + v * $stride;
          if (place[v] >= 0 && at >= from && at < to) sum[plane + at] += $dout;
        }
        q += count;
        continue;
      }"""

# A single window: its rows are searched from the first on, $lanes elements at a time.
_SINGLE_WINDOW = """const $T best = $one_best;
      $lane_window
      int open = 1;
      for (index_t x = x0; x < x1 && open; ++x)
        for (index_t y = y0; y < y1 && open; ++y)
          for (index_t z = z0; z < z1 && open; ++z) {
            const index_t row = ((x * nb + y) * nc + z) * nl, first = plane + row;
            index_t w = w0;
            while (w + $lanes <= w1) {
              int hit = 0;
              for (int v = 0; v < $lanes; ++v) hit |= $x_some == best;
              if (hit) break;
              w += $lanes;
            }
            while (w < w1 && $x_one != best) ++w;
            open = w == w1;
            if (!open && row + w >= from && row + w < to) sum[plane + row + w] += $one_dout;
          }
      ++q;"""


class _PoolGeometry:
    """The arguments of the dims, and the text that uses them."""

    def __init__(self, call: Call) -> None:
        axes = [axis.regular for axis in pool_axes(call)]
        self.outer, self.inner = pool_planes(call)
        self.size = prod(axis.size for axis in axes)
        self.spans = self.inner == 1  # whether windows span the innermost loop
        if not self.spans:
            axes.append(PoolAxis(self.inner, self.inner, 1, 1, 0, False))
        self.axes = [PoolAxis(1, 1, 1, 1, 0, False)] * (4 - len(axes)) + axes
        self.numbers = [number for axis in self.axes for number in axis[:5]]
        self.names = [f"{word}{name}" for name in (*DIM_NAMES, "l") for word in "noksp"]

    def window(self, name: str, o: str, to: str) -> str:
        """Declare the range [``<to>0``, ``<to>1``) of a dim that window ``o`` covers."""
        return (
            f"index_t {to}0 = ({o}) * s{name} - p{name}, {to}1 = {to}0 + k{name}; {to}0 = {to}0 < 0 ? 0 : {to}0; "
            f"{to}1 = {to}1 < n{name} ? {to}1 : n{name}; {to}1 = {to}1 < {to}0 ? {to}0 : {to}1;"
        )

    def covering(self, name: str, first: str, last: str) -> str:
        """Declare the windows [``q<name>0``, ``q<name>1``) that reach elements ``first`` to ``last``."""
        low, high, o = f"q{name}0", f"q{name}1", f"o{name}"
        return (
            f"index_t {low} = ({first}) + p{name} - k{name} + 1, {high} = (({last}) + p{name}) / s{name} + 1; "
            f"{low} = {low} <= 0 ? 0 : ({low} + s{name} - 1) / s{name}; {high} = {high} < {o} ? {high} : {o};"
        )


def _supports(call: Call) -> str | None:
    if call.attr("pooling_type") != "max":
        return "means are computed by loops"
    if any(axis.regular.adaptive for axis in pool_axes(call)):
        return "windows of different sizes are computed by loops"
    return None


def _max_pool_grad(call: Call, context: Context) -> Any:
    """Return the kernel that adds each element of Out@GRAD to the first maximum of its window.

    Half types are summed in float32 in the workspace, and rounded once.
    """
    dtype, frame = call.dtype("X"), _PoolGeometry(call)
    wide, run_axis = compute_dtype(dtype), frame.axes[3]
    half = wide != dtype
    d = next((i for i, axis in enumerate(frame.axes[:3]) if axis.size > 1), 2)
    axis, name = frame.axes[d], DIM_NAMES[d]
    covering = [f"const index_t q{n}0 = 0, q{n}1 = o{n};" for n in DIM_NAMES]
    covering[d] = frame.covering(name, "d0", "d1 - 1")
    stride = str(run_axis.stride)
    unrolled = run_axis.kernel <= MAX_UNROLLED
    kernel = str(run_axis.kernel) if unrolled else "kl"
    side_by_side = not frame.spans or run_axis.stride <= MAX_UNROLLED
    inside = f"const index_t low = (pl + {stride} - 1) / {stride}, room = nl - {kernel} + pl;"
    inside += f" const index_t high = room < 0 ? 0 : room / {stride} + 1 < ol ? room / {stride} + 1 : ol;"
    result = store(context, dtype, "dx[i]", "sum[i]")
    words = {
        "d": name,
        "rest": " * ".join([*(f"n{n}" for n in DIM_NAMES[d + 1 :]), "nl"]),
        "covering": "\n  ".join(covering),
        "windows": "\n    ".join(frame.window(n, f"q{n}", w) for n, w in zip(DIM_NAMES, "xyz", strict=True)),
        "T": ctype(context, wide),
        "lanes": str(LANES),
        "run": str(MAX_PARALLEL_WINDOWS),
        "stride": stride,
        "over": "" if unrolled else "for (index_t k = kl - 1; k >= 0; --k)",
        "start": "" if unrolled else " + k",
        "compare": "\n              ".join(
            f"found = {load(dtype, f'x_in[first + v * {stride} + {k}]')} == given ? here + {k} : found;"
            for k in range(run_axis.kernel - 1 if unrolled else 0, -1, -1)
        ),
        "inside": inside if side_by_side else "",
        "lane_window": frame.window("l", "q", "w") if frame.spans else "const index_t w0 = q, w1 = q + 1;",
        "best": load(dtype, "out[line + q + v]"),
        "dout": load(dtype, "dout[line + q + v]"),
        "one_best": load(dtype, "out[line + q]"),
        "one_dout": load(dtype, "dout[line + q]"),
        "x_some": load(dtype, "x_in[first + w + v]"),
        "x_one": load(dtype, "x_in[first + w]"),
        "result": f"for (index_t i = plane + from; i < plane + to; ++i) {{ {result} }}" if half else "",
    }
    text = _BANDS.replace("$abreast", _PARALLEL_WINDOWS if side_by_side else "").replace("$singly", _SINGLE_WINDOW)
    buffers = [Buffer("x_in", dtype), Buffer("out", dtype), Buffer("dout", dtype), Buffer("sum", wide, True)]
    variant = f"{name}_{stride}_{kernel}" if side_by_side else name
    entry = f"pool_grad_max{'' if frame.spans else '_last'}_{variant}"
    pool_kernel = build(
        context,
        f"{entry}_{dtype}",
        buffers + ([Buffer("dx", dtype, True)] if half else []),
        [*frame.names, "bands", "step"],
        text,
        words,
    )
    bands = max(1, min(-(-MAX_SPLIT_ITEMS // max(frame.outer, 1)), axis.size // max(4 * axis.kernel, LANES)))
    step = -(-axis.size // bands)
    bands = -(-axis.size // step)
    numbers, items = (*frame.numbers, bands, step), frame.outer * bands

    def run(context: Context, io: IO) -> None:
        spans = [io.span("X"), io.span("Out"), io.span("Out@GRAD"), io.span("X@GRAD")]
        if io.workspace is not None:
            spans.insert(3, io.workspace.span())
        pool_kernel(context, items, spans, numbers, PER_ITEM)

    return Prepared(run, frame.outer * frame.size * frame.inner * ITEMSIZE[wide] if half else 0)


def _registered(op: str) -> Kernel:
    options = KernelOptions(written_for="cores")
    return register_kernel(op, "language", supports=_supports, options=options)(_max_pool_grad)


pool2d_grad, pool3d_grad = _registered("pool2d_grad"), _registered("pool3d_grad")
