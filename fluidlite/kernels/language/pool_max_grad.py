"""The gradient of a pooling by the maximum: looked for once a window, and added there.

An item owns a band of a plane. Runs go along the last spatial dim, or the channels where they come last, which no
window spans. Outside of a run there are always three dims, those that are missing being of size 1; of each dim the
kernel is told its size ``n``, its count ``o`` of windows, and their ``k``, ``s`` and ``p`` (kernel, stride, padding).
"""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.kernel_support import ITEMSIZE, Kernel, PoolAxis, pool_axes, pool_planes
from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, compute_dtype, register_kernel

from .source import HEAVY, LANES, Buffer, build, ctype, load, store

NAMES = ("a", "b", "c")
"""The dims outside of a run."""
RUN = 64
"""Windows that are compared side by side, at most."""
SHARED = 64
"""Items that are enough; more of them would look for more of the same elements."""
FIXED = 4
"""Largest stride of windows side by side, and largest kernel that is compared at once: both are in the text."""

# An item owns a band of a plane. It goes through the windows that reach into the band in order, so that sums repeat.
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

# Windows side by side that lie inside: all elements are compared, the last first, so that the first equal one stays.
_ABREAST = """if (q >= low && q < high) {
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

# A window alone: its rows are looked through from the first on, some elements at once.
_SINGLY = """const $T best = $one_best;
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


class Frame:
    """The dims' numbers, and text about them."""

    def __init__(self, call: Call) -> None:
        axes = [axis.regular for axis in pool_axes(call)]
        self.outer, self.inner = pool_planes(call)
        self.size = prod(axis.size for axis in axes)
        self.spans = self.inner == 1  # whether windows span the run
        if not self.spans:
            axes.append(PoolAxis(self.inner, self.inner, 1, 1, 0, False))
        self.axes = [PoolAxis(1, 1, 1, 1, 0, False)] * (4 - len(axes)) + axes
        self.numbers = [number for axis in self.axes for number in axis[:5]]
        self.names = [f"{word}{name}" for name in (*NAMES, "l") for word in "noksp"]

    def window(self, name: str, o: str, to: str) -> str:
        """Text that declares the part [``<to>0``, ``<to>1``) of a dim that window ``o`` covers."""
        return (
            f"index_t {to}0 = ({o}) * s{name} - p{name}, {to}1 = {to}0 + k{name}; {to}0 = {to}0 < 0 ? 0 : {to}0; "
            f"{to}1 = {to}1 < n{name} ? {to}1 : n{name}; {to}1 = {to}1 < {to}0 ? {to}0 : {to}1;"
        )

    def covering(self, name: str, first: str, last: str) -> str:
        """Text that declares the windows [``q<name>0``, ``q<name>1``) that hold elements ``first`` to ``last``."""
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


def _greatest_grad(call: Call, context: Context) -> Any:
    """Return the run that adds each element of Out@GRAD to the first maximum of its window.

    Half types are added in a workspace of float32, and rounded once.
    """
    dtype, frame = call.dtype("X"), Frame(call)
    wide, run_axis = compute_dtype(dtype), frame.axes[3]
    half = wide != dtype
    d = next((i for i, axis in enumerate(frame.axes[:3]) if axis.size > 1), 2)
    axis, name = frame.axes[d], NAMES[d]
    covering = [f"const index_t q{n}0 = 0, q{n}1 = o{n};" for n in NAMES]
    covering[d] = frame.covering(name, "d0", "d1 - 1")
    stride = str(run_axis.stride)
    at_once = run_axis.kernel <= FIXED
    kernel = str(run_axis.kernel) if at_once else "kl"
    abreast = not frame.spans or run_axis.stride <= FIXED
    inside = f"const index_t low = (pl + {stride} - 1) / {stride}, room = nl - {kernel} + pl;"
    inside += f" const index_t high = room < 0 ? 0 : room / {stride} + 1 < ol ? room / {stride} + 1 : ol;"
    result = store(context, dtype, "dx[i]", "sum[i]")
    words = {
        "d": name,
        "rest": " * ".join([*(f"n{n}" for n in NAMES[d + 1 :]), "nl"]),
        "covering": "\n  ".join(covering),
        "windows": "\n    ".join(frame.window(n, f"q{n}", w) for n, w in zip(NAMES, "xyz", strict=True)),
        "T": ctype(context, wide),
        "lanes": str(LANES),
        "run": str(RUN),
        "stride": stride,
        "over": "" if at_once else "for (index_t k = kl - 1; k >= 0; --k)",
        "start": "" if at_once else " + k",
        "compare": "\n              ".join(
            f"found = {load(dtype, f'x_in[first + v * {stride} + {k}]')} == given ? here + {k} : found;"
            for k in range(run_axis.kernel - 1 if at_once else 0, -1, -1)
        ),
        "inside": inside if abreast else "",
        "lane_window": frame.window("l", "q", "w") if frame.spans else "const index_t w0 = q, w1 = q + 1;",
        "best": load(dtype, "out[line + q + v]"),
        "dout": load(dtype, "dout[line + q + v]"),
        "one_best": load(dtype, "out[line + q]"),
        "one_dout": load(dtype, "dout[line + q]"),
        "x_some": load(dtype, "x_in[first + w + v]"),
        "x_one": load(dtype, "x_in[first + w]"),
        "result": f"for (index_t i = plane + from; i < plane + to; ++i) {{ {result} }}" if half else "",
    }
    text = _BANDS.replace("$abreast", _ABREAST if abreast else "").replace("$singly", _SINGLY)
    buffers = [Buffer("x_in", dtype), Buffer("out", dtype), Buffer("dout", dtype), Buffer("sum", wide, True)]
    how = f"{name}_{stride}_{kernel}" if abreast else name
    entry = f"pool_grad_max{'' if frame.spans else '_last'}_{how}"
    made = build(
        context,
        f"{entry}_{dtype}",
        buffers + ([Buffer("dx", dtype, True)] if half else []),
        [*frame.names, "bands", "step"],
        text,
        words,
    )
    bands = max(1, min(-(-SHARED // max(frame.outer, 1)), axis.size // max(4 * axis.kernel, LANES)))
    step = -(-axis.size // bands)
    bands = -(-axis.size // step)
    numbers, items = (*frame.numbers, bands, step), frame.outer * bands

    def run(context: Context, io: IO) -> None:
        spans = [io.span("X"), io.span("Out"), io.span("Out@GRAD"), io.span("X@GRAD")]
        if io.workspace is not None:
            spans.insert(3, io.workspace.span())
        made(context, items, spans, numbers, HEAVY)

    return Prepared(run, frame.outer * frame.size * frame.inner * ITEMSIZE[wide] if half else 0)


def _registered(op: str) -> Kernel:
    options = KernelOptions(written_for="cores")
    return register_kernel(op, "language", supports=_supports, options=options)(_greatest_grad)


pool2d_grad, pool3d_grad = _registered("pool2d_grad"), _registered("pool3d_grad")
