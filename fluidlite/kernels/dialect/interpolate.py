"""nearest_interp, bilinear_interp and the like, with gradients: some elements of a row of the result an item.

What each element is made of along an axis is copied into the workspace: for each the range of its entries, and the
entries' indices and weights; along the last axis, where neighbours are made at once, the number of entries of each,
its first, its second, and so on. A gradient has the same form, by the transposed matrices.
"""

from __future__ import annotations

from math import prod
from string import Template
from typing import Any

import numpy as np

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, Weights, compute_dtype, is_float, numpy_dtype, register_kernel
from fluidlite.plugin import resample_of as resampling

from .source import MOVED, Buffer, build, ctype, dealt, load, part, store

LANES = 64
"""Elements that one item makes."""
SPAN = 320
"""Most elements of a row of the source that an item first adds up over the other axes."""

_HEAD = """
  const index_t chunks = (width * inner + $lanes - 1) / $lanes;
  index_t rest = gid / chunks;
  const index_t from = (gid - rest * chunks) * $lanes, left = width * inner - from;
  const int lanes = left < $lanes ? (int)left : $lanes;
  const index_t to = rest * width * inner + from;
  index_t next = rest / height; const index_t h = rest - next * height; rest = next;
  next = rest / depth; const index_t d = rest - next * depth;
  const $buffer index_t* h_start = entries + depth + 1;
  const $buffer index_t* w_count = h_start + height + 1;
  const $buffer index_t* w_index = w_count + width;
  const $buffer index_t* w_reach = w_index + most * width;
  const $buffer index_t* d_index = w_reach + 2 * chunks;
  const $buffer index_t* h_index = d_index + entries[depth];
  const $buffer $T* h_weight = weights + entries[depth];
  const $buffer $T* w_weight = h_weight + h_start[height];
  $made
"""

_TAKEN = """
  const index_t row = ((next * depth_in + d_index[d]) * height_in + h_index[h]) * width_in;
  for (int v = 0; v < lanes; ++v) {
    const index_t w = $w, at = (row + w_index[w]) * inner + $c;
    out[to + v] = x[at];
  }"""

_SUMMED = """
  const index_t low = w_reach[2 * (from / $lanes)], span = w_reach[2 * (from / $lanes) + 1] * inner;
  $T line[$span];
  if (span <= $span) {
    for (index_t s = 0; s < span; ++s) line[s] = 0;
    for (index_t i = entries[d]; i < entries[d + 1]; ++i)
      for (index_t j = h_start[h]; j < h_start[h + 1]; ++j) {
        const $T outside = weights[i] * h_weight[j];
        const index_t row = (((next * depth_in + d_index[i]) * height_in + h_index[j]) * width_in + low) * inner;
        for (index_t s = 0; s < span; ++s) { const index_t at = row + s; line[s] += outside * $x; }
      }
    $T total[$lanes];
    for (int v = 0; v < lanes; ++v) total[v] = 0;
    for (index_t k = 0; k < most; ++k)
      for (int v = 0; v < lanes; ++v) {
        const index_t w = $w, at = (w_index[k * width + w] - low) * inner + $c;
        const $T term = w_weight[k * width + w] * line[at];
        total[v] += k < w_count[w] ? term : 0;
      }
    for (int v = 0; v < lanes; ++v) { const $T sum = total[v]; $store }
  } else {
    for (int v = 0; v < lanes; ++v) {
      const index_t w = $w, c = $c;
      $T sum = 0;
      for (index_t i = entries[d]; i < entries[d + 1]; ++i)
        for (index_t j = h_start[h]; j < h_start[h + 1]; ++j) {
          const $T outside = weights[i] * h_weight[j];
          const index_t row = ((next * depth_in + d_index[i]) * height_in + h_index[j]) * width_in;
          for (index_t k = 0; k < w_count[w]; ++k) {
            const index_t at = (row + w_index[k * width + w]) * inner + c;
            sum += outside * w_weight[k * width + w] * $x;
          }
        }
      $store
    }
  }"""


def _abreast(axis: Weights) -> tuple[Any, Any, Any]:
    """Return the number of entries of each element, and their indices and weights: all first ones, all second ones...

    Where an element has no such entry, an entry is repeated, so that it can be read and left out.
    """
    counts = np.diff(axis.start)
    most = max(int(counts.max(initial=0)), 1)
    where = np.minimum(axis.start[:-1] + np.arange(most)[:, None], axis.start[1:] - 1)
    indices, weights = (values if len(values) else np.zeros(1) for values in (axis.index, axis.weight))
    return counts, indices[np.maximum(where, 0)], weights[np.maximum(where, 0)]


def _reach(indices: Any, inner: int) -> Any:
    """Return, for each run of elements, the first index that they are made of and how many follow, itself included."""
    width = indices.shape[1]
    begins = np.arange(0, width * inner, LANES)
    ends = np.minimum(begins + LANES, width * inner) - 1
    runs = [indices[:, b : e + 1] for b, e in zip(begins // inner, ends // inner, strict=True)]
    return np.array([(run.min(), run.max() - run.min() + 1) for run in runs], np.int64).reshape(-1, 2)


def _interpolate(call: Call, context: Context, source: str, target: str) -> Any:
    resample, dtype = resampling(call), call.dtype(source)
    wide = compute_dtype(dtype) if is_float(dtype) else "float32"
    one = Weights(1, 1, np.array([0, 1]), np.array([0]), np.array([1.0]))
    axes = (one,) * (3 - len(resample.axes)) + resample.axes
    counts, indices, factors = _abreast(axes[2])
    reach = _reach(indices, resample.inner)
    tables = [a.start for a in axes[:2]] + [counts, indices.ravel(), reach.ravel()] + [a.index for a in axes[:2]]
    entries = np.concatenate(tables).astype(np.int64)
    weights = np.concatenate([*(a.weight for a in axes[:2]), factors.ravel()]).astype(numpy_dtype(wide))
    content = memoryview(entries.tobytes() + weights.tobytes())
    moved = MOVED[ITEMSIZE[dtype]] if resample.exact else dtype
    words = {
        "T": ctype(context, wide), "lanes": str(LANES), "span": str(SPAN), "x": load(dtype, "x[at]"),
        "w": "from + v" if resample.inner == 1 else "(from + v) / inner",
        "c": "0" if resample.inner == 1 else "from + v - w * inner",
        "store": store(context, dtype, "out[to + v]", "sum"),
    }  # fmt: skip
    made = Template(_TAKEN if resample.exact else _SUMMED).substitute(words)
    how = f"{'take' if resample.exact else 'sum'}_{'plane' if resample.inner == 1 else 'last'}"
    kernel = build(
        context, f"interpolate_{how}_{moved}_{wide}",
        [Buffer("x", moved), Buffer("entries", "int64"), Buffer("weights", wide), Buffer("out", moved, True)],
        ["inner", "depth", "height", "width", "depth_in", "height_in", "width_in", "most"], _HEAD,
        {**words, "made": made},
    )  # fmt: skip
    numbers = (resample.inner, *(axis.target for axis in axes), *(axis.source for axis in axes), len(indices))
    items = resample.outer * prod(a.target for a in axes[:2]) * -(-axes[2].target * resample.inner // LANES)

    def run(context: Context, io: IO) -> None:
        assert io.workspace is not None
        tables = io.workspace.span()
        context.copy_in(tables, content)
        spans = (io.span(source), tables, part(tables, entries.nbytes), io.span(target))
        kernel(context, items, spans, numbers, dealt(items))

    run.workspace = content.nbytes  # type: ignore[attr-defined]
    return run


def _forward(call: Call, context: Context) -> Any:
    """Out = X, resampled."""
    return _interpolate(call, context, "X", "Out")


def _backward(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD, resampled by the transposed matrices."""
    return _interpolate(call, context, "Out@GRAD", "X@GRAD")


bilinear_interp = register_kernel("bilinear_interp", "dialect")(_forward)
nearest_interp = register_kernel("nearest_interp", "dialect")(_forward)
bicubic_interp = register_kernel("bicubic_interp", "dialect")(_forward)
linear_interp = register_kernel("linear_interp", "dialect")(_forward)
trilinear_interp = register_kernel("trilinear_interp", "dialect")(_forward)
bilinear_interp_grad = register_kernel("bilinear_interp_grad", "dialect")(_backward)
nearest_interp_grad = register_kernel("nearest_interp_grad", "dialect")(_backward)
bicubic_interp_grad = register_kernel("bicubic_interp_grad", "dialect")(_backward)
linear_interp_grad = register_kernel("linear_interp_grad", "dialect")(_backward)
trilinear_interp_grad = register_kernel("trilinear_interp_grad", "dialect")(_backward)
