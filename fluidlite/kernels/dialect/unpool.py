"""unpool and its gradient, and the gradient of spp.

An index of unpool that is out of range is recorded in the status word and passed over.
"""

from __future__ import annotations

from math import prod
from string import Template
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, compute_dtype, register_kernel

from .source import HEAVY, LANES, MOVED, Buffer, build, ctype, dealt, load, store

_STATUS = Buffer("status", "int64", True)

# A plane an item: the last of several elements for one place stays.
_UNPOOL = """
  for (index_t i = 0; i < size; ++i) out[gid * size + i] = 0;
  for (index_t i = 0; i < count; ++i) {
    const index_t at = places[gid * count + i];
    if (at >= 0 && at < size) out[gid * size + at] = x[gid * count + i];
    else bad_index(status, op_id, at, size);
  }
"""

_GRAD = """
  const index_t at = places[gid];
  const int inside = at >= 0 && at < size;
  if (!inside) bad_index(status, op_id, at, size);
  dx[gid] = inside ? dout[gid / count * size + at] : 0;
"""


@register_kernel("unpool", "dialect", indexes=True)
def unpool(call: Call, context: Context) -> Any:
    """Out = 0, and X at the places that Indices name in each plane."""
    dims, moved = call.dims("X"), MOVED[ITEMSIZE[call.dtype("X")]]
    planes, count, size = dims[0] * dims[1], prod(dims[2:]), prod(call.dims("Out")[2:])
    kernel = build(
        context, f"unpool_{moved}",
        [Buffer("x", moved), Buffer("places", call.dtype("Indices")), Buffer("out", moved, True), _STATUS],
        ["size", "count", "op_id"], _UNPOOL,
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        spans = (io.span("X"), io.span("Indices"), io.span("Out"), context.status_span())
        kernel(context, planes, spans, (size, count, io.op_id), HEAVY)

    return run


@register_kernel("unpool_grad", "dialect", indexes=True)
def unpool_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD at the places that Indices name in each plane."""
    dims, moved = call.dims("X@GRAD"), MOVED[ITEMSIZE[call.dtype("Out@GRAD")]]
    count, size, items = prod(dims[2:]), prod(call.dims("Out@GRAD")[2:]), prod(dims)
    kernel = build(
        context, f"unpool_grad_{moved}",
        [Buffer("dout", moved), Buffer("places", call.dtype("Indices")), Buffer("dx", moved, True), _STATUS],
        ["size", "count", "op_id"], _GRAD,
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        spans = (io.span("Out@GRAD"), io.span("Indices"), io.span("X@GRAD"), context.status_span())
        kernel(context, items, spans, (size, count, io.op_id), dealt(items))

    return run


# spp ---------------------------------------------------------------------------------------------------------------

# A plane an item: it goes through the windows of all levels in order, so that sums repeat.
_PYRAMID = """
  const index_t image = gid / channels, c = gid - image * channels, plane = gid * height * width;
  for (index_t i = plane; i < plane + height * width; ++i) sum[i] = 0;
  index_t before = 0;
  for (int level = 0; level < levels; ++level) {
    const index_t bins = (index_t)1 << level, line = (image * total + before) * channels + c * bins * bins;
    const index_t kh = (height + bins - 1) / bins, kw = (width + bins - 1) / bins;
    const index_t up = (kh * bins - height + 1) / 2, left = (kw * bins - width + 1) / 2;
    before += bins * bins;
    for (index_t q = 0; q < bins * bins; ++q) {
      const index_t y = q / bins * kh - up, x = (q - q / bins * bins) * kw - left;
      const index_t y0 = y < 0 ? 0 : y, y1 = y + kh < height ? y + kh : height;
      const index_t x0 = x < 0 ? 0 : x, x1 = x + kw < width ? x + kw : width;
      $add
    }
  }
  $result
"""

_PYRAMID_MEAN = """if (y1 <= y0 || x1 <= x0) continue;
      const $T share = $dout / ($T)((y1 - y0) * (x1 - x0));
      for (index_t h = y0; h < y1; ++h)
        for (index_t w = x0; w < x1; ++w) sum[plane + h * width + w] += share;"""

_PYRAMID_GREATEST = """const $T best = $out;
      int open = 1;
      for (index_t h = y0; h < y1 && open; ++h) {
        const index_t row = plane + h * width;
        index_t w = x0;
        while (w + $lanes <= x1) {
          int hit = 0;
          for (int v = 0; v < $lanes; ++v) hit |= $x_some == best;
          if (hit) break;
          w += $lanes;
        }
        while (w < x1 && $x != best) ++w;
        if (w < x1) { sum[row + w] += $dout; open = 0; }
      }"""


@register_kernel("spp_grad", "dialect")
def spp_grad(call: Call, context: Context) -> Any:
    """X@GRAD = the sum of the gradients of the poolings. Half types are added in float32, in a workspace."""
    dtype, dims, levels = call.dtype("X"), call.dims("X"), call.attr("pyramid_height")
    wide, greatest = compute_dtype(dtype), call.attr("pooling_type") == "max"
    half = wide != dtype
    words = {
        "T": ctype(context, wide), "lanes": str(LANES), "dout": load(dtype, "dout[line + q]"),
        "out": load(dtype, "out[line + q]"), "x": load(dtype, "x_in[row + w]"),
        "x_some": load(dtype, "x_in[row + w + v]"),
    }  # fmt: skip
    result = store(context, dtype, "dx[i]", "sum[i]")
    words["result"] = f"for (index_t i = plane; i < plane + height * width; ++i) {{ {result} }}" if half else ""
    words["add"] = Template(_PYRAMID_GREATEST if greatest else _PYRAMID_MEAN).substitute(words)
    read = {"X": "x_in", "Out": "out", "Out@GRAD": "dout"} if greatest else {"Out@GRAD": "dout"}
    buffers = [*(Buffer(name, dtype) for name in read.values()), Buffer("sum", wide, True)]
    kernel = build(
        context, f"spp_grad_{call.attr('pooling_type')}_{dtype}",
        buffers + ([Buffer("dx", dtype, True)] if half else []),
        ["channels", "height", "width", "levels", "total"], _PYRAMID, words,
    )  # fmt: skip
    numbers = (*dims[1:], levels, (4**levels - 1) // 3)

    def run(context: Context, io: IO) -> None:
        sums = [io.workspace.span()] if io.workspace is not None else []
        spans = [*(io.span(slot) for slot in read), *sums, io.span("X@GRAD")]
        kernel(context, dims[0] * dims[1], spans, numbers, HEAVY)

    run.workspace = prod(dims) * ITEMSIZE[wide] if half else 0  # type: ignore[attr-defined]
    return run
