"""Kernels of Winograd's convolution that take all steps of a block of tiles in one work-item.

What one thread writes, no other reads: lines of a workspace that threads share would go from cache to cache.
"""

from __future__ import annotations

from string import Template

from fluidlite.plugin import Context

from . import conv_vectors
from .conv_vectors import Tile
from .source import Buffer, CompiledKernel, build, cached_per_context, ctype
from .winograd_texts import GEOMETRY, SPOTS, image_body, run_of, spread_body, windows_body

_BLOCKS = """
  const index_t slot = gid, channels = groups * inner;
  $buffer $T* const transforms = inputs + slot * rows * in_pitch;
  $buffer $T* const products = totals + slot * rows * sum_pitch;
  for (index_t block = slot; block * size < all; block += slots) {
    const index_t tile0 = block * size, tiles = tile0 + size < all ? size : all - tile0;
    {
      $buffer $T* const made = transforms;
      const index_t pitch = in_pitch;
      for (index_t gid = 0; gid < tiles; ++gid) {
        $image
      }
    }
    {
      $buffer const $T* const image = transforms;
      $buffer $T* const out = products;
      const index_t w_count = tiles < $rows ? $rows : tiles, columns = w_count, count = $spots * groups * strips;
      const index_t near = 0, tile0 = 0, images = 1, channels = in_pitch, first = 0, rows = 1, h_least = 0;
      const index_t h_count = 1, h_stride = 1, w_stride = 1, h_reach = 1, w_reach = 1, h_taps = 1, w_outer = 1;
      const index_t run = inner, base = 0, n_step = 0, c_step = 1, h_step = 0, w_step = sum_pitch;
      const index_t items = count * ((columns + $rows - 1) / $rows);
      for (index_t gid = 0; gid < items; ++gid) {
        $product
      }
    }
    {
      $buffer const $T* const sums = products;
      const index_t pitch = sum_pitch, runs = (tiles + $run - 1) / $run;
      for (index_t gid = 0; gid < runs; ++gid) {
        $windows
      }
    }
  }
"""


@cached_per_context
def blocks_kernel(context: Context, dtype: str, tile: Tile, last: bool) -> CompiledKernel:
    """Return the kernel that convolves: a work-item transforms, multiplies and transforms back block after block."""
    words = {"T": ctype(context, dtype), "rows": str(tile.rows), "run": str(run_of(last)), "spots": str(SPOTS)}
    text = Template(_BLOCKS).safe_substitute(
        words,
        image=image_body(context, dtype),
        product=conv_vectors.windows_body(context, dtype, tile, True),
        windows=windows_body(context, dtype, last),
    )
    buffers = [
        *(Buffer(name, dtype) for name in ("image", "filter", "packed")),
        *(Buffer(name, dtype, True) for name in ("inputs", "totals", "out")),
    ]
    numbers = ["all", "size", "slots", "rows", "strips", "in_pitch", "sum_pitch", *GEOMETRY]
    name = f"winograd_blocks_{'x'.join(map(str, tile.lanes))}_{'last' if last else 'first'}_{dtype}"
    return build(context, name, buffers, numbers, text)


_SUMS = """
  const index_t slot = gid, spots = $spots * groups, channels = groups * inner, filters = groups * m;
  $buffer $T* const transforms = inputs + slot * rows * in_pitch;
  $buffer $T* const gradients = grads + slot * (rows * $spots * filters + $width);
  $buffer $T* const own = totals + slot * total;
  for (index_t block = slot; block * size < all; block += slots) {
    const index_t tile0 = block * size, tiles = tile0 + size < all ? size : all - tile0;
    const index_t later = more != 0 || block != slot;
    {
      $buffer $T* const made = transforms;
      const index_t pitch = in_pitch;
      for (index_t gid = 0; gid < tiles; ++gid) {
        $image
      }
    }
    {
      $buffer $T* const made = gradients;
      const index_t base = y_base, n_step = y_n_step, h_step = y_h_step, w_step = y_w_step, c_step = y_c_step;
      const index_t runs = (tiles + $run - 1) / $run;
      for (index_t gid = 0; gid < runs; ++gid) {
        $spread
      }
    }
    {
      $buffer const $T* const image = transforms;
      $buffer const $T* const windows = gradients;
      $buffer $T* const total = own;
      const index_t groups = spots, channels = in_pitch, columns = tiles, w_count = tiles, run = inner, add = later;
      const index_t first = 0, rows = 1, h_least = 0, h_count = 1, h_stride = 1, w_stride = 1, h_reach = 1;
      const index_t w_reach = 1, h_taps = 1, w_outer = 1, r0 = 0, r1 = 1;
      const index_t items = groups * strips * ((inner + $last_row) / $rows);
      for (index_t gid = 0; gid < items; ++gid) {
        $product
      }
    }
  }
"""


@cached_per_context
def sums_kernel(context: Context, dtype: str, tile: Tile, last: bool) -> CompiledKernel:
    """Return the kernel that sums products for a filter's gradient: a work-item sums those of block after block."""
    words = {"T": ctype(context, dtype), "rows": str(tile.rows), "last_row": str(tile.rows - 1)}
    words |= {"width": str(tile.width), "run": str(run_of(last)), "spots": str(SPOTS)}
    text = Template(_SUMS).safe_substitute(
        words,
        image=image_body(context, dtype),
        spread=spread_body(context, dtype, last),
        product=conv_vectors.filter_body(context, dtype, tile),
    )
    buffers = [
        *(Buffer(name, dtype) for name in ("image", "windows")),
        *(Buffer(name, dtype, True) for name in ("inputs", "grads", "totals")),
    ]
    numbers = [
        *("all", "size", "slots", "rows", "strips", "in_pitch", "total", "more", "h_tiles", "w_tiles", "groups"),
        *("inner", "m", "base", "n_step", "h_step", "w_step", "h_least", "w_least", "h_size", "w_size"),
        *("y_base", "y_n_step", "y_h_step", "y_w_step", "y_c_step", "h_count", "w_count"),
    ]
    name = f"winograd_sums_{tile.name}_{'last' if last else 'first'}_{dtype}"
    return build(context, name, buffers, numbers, text)


ADDED_ELEMENTS = 256
"""Elements of sums that a work-item adds."""
_TOTAL = """
  const index_t begin = gid * $each, end = begin + $each < size ? begin + $each : size;
  for (index_t slot = 1; slot < slots; ++slot)
    for (index_t e = begin; e < end; ++e) totals[e] += totals[slot * size + e];
"""


@cached_per_context
def total_kernel(context: Context, dtype: str) -> CompiledKernel:
    """Return the kernel that adds the sums of all slots to those of the first; a work-item adds some elements."""
    buffers, words = [Buffer("totals", dtype, True)], {"each": str(ADDED_ELEMENTS)}
    return build(context, f"winograd_total_{dtype}", buffers, ["size", "slots"], _TOTAL, words)
