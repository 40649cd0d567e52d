"""Sources of the convolution kernels whose sums stay in vector registers.

A work-item computes some adjacent windows of a row for a few vectors of filters: each element of the image is
broadcast against vectors of the packed filter. It reads images with channels last, in which the elements of a window's
row are contiguous; images in another layout, or with padding, are repacked first.
"""

from __future__ import annotations

from string import Template
from typing import NamedTuple

from fluidlite.kernel_support import ITEMSIZE
from fluidlite.plugin import Context

from .source import REGISTER_SUM_TERMS, Buffer, CompiledKernel, build, cached_per_context, ctype

PACK_SIZE = 64
"""Channels that a work-item packs."""
MAX_TILE_ROWS = 8
"""Maximum rows of a tile: with two vectors each, they give enough independent sums for the multipliers. More rows gain
nothing and would need more kernels, because each height of a tile is one to compile."""


class Tile(NamedTuple):
    """The sums that a work-item keeps in registers.

    ``rows``: windows, or elements of a filter, whose values are broadcast.
    ``lanes``: the lanes of each vector of filters.
    """

    rows: int
    lanes: tuple[int, ...]

    @property
    def width(self) -> int:
        """Filters of a tile."""
        return sum(self.lanes)

    @property
    def name(self) -> str:
        """The text of the tile in the names of kernels."""
        return "x".join(map(str, (self.rows, *self.lanes)))

    def vectors(self) -> list[tuple[int, int, int]]:
        """Return (index, lanes, first filter) of each vector."""
        return [(v, lanes, sum(self.lanes[:v])) for v, lanes in enumerate(self.lanes)]


def lanes_of(context: Context, dtype: str) -> int:
    """Return the lanes of a vector: those of a register, at most 64 bytes, the largest named vector type."""
    lanes: int = min(64, context.language.registers[1]) // ITEMSIZE[dtype]
    return lanes


def tile_of(context: Context, dtype: str, count: int, filters: int) -> Tile:
    """Return the tile for rows of ``count`` windows and ``filters`` filters: the fewest tiles, all of one size."""
    registers, full = context.language.registers[0], lanes_of(context, dtype)
    # Half a vector takes half the time of a vector, or all of it.
    shapes = ((full, full), (full, full // 2), (full,))
    lanes = min((shape for shape in shapes if min(shape) > 1), key=lambda shape: -(-filters // sum(shape)) * sum(shape))
    max_rows = min(MAX_TILE_ROWS, (registers - len(lanes) - 1) // len(lanes))
    return Tile(-(-count // -(-count // max_rows)), lanes)


# Laying out --------------------------------------------------------------------------------------------------------

MAX_PLANES = 8
"""Channels of an image that are copied side by side. Where an image takes a multiple of 4 KiB, their cache lines are in
one set, and most caches hold eight of a set."""

_PLANES = """
  const index_t n = gid / rows;
  index_t low = w_least < 0 ? -w_least : 0, high = w_size - w_least;
  if (low > columns) low = columns;
  if (high > columns) high = columns;
  if (high < low) high = low;
  $buffer $T* const to = planes + gid * columns * channels;
  const index_t from = base + n * n_step + (h_least + gid - n * rows) * h_step + w_least * w_step;
  for (index_t j = 0; j < low * channels; ++j) to[j] = 0;
  for (index_t j = high * channels; j < columns * channels; ++j) to[j] = 0;
  $copy
"""
_PLANES_LAST = "for (index_t j = low * channels; j < high * channels; ++j) to[j] = image[from + j];"
_PLANES_FIRST = """

  if (channels < $lanes) {
    for (index_t c = 0; c < channels; ++c)
      for (index_t j = low; j < high; ++j) to[j * channels + c] = image[from + j + c * c_step];
  } else {
    for (index_t at = 0; at < channels; at += $lanes) {
      const index_t c = at + $lanes <= channels ? at : channels - $lanes;
      $buffer const $T* const p = image + from + c * c_step;
      for (index_t j = low; j < high; ++j)
        vstore$lanes(($T$lanes)($numbers), 0, to + j * channels + c);
    }
  }
"""


@cached_per_context
def planes_kernel(context: Context, dtype: str, last: bool) -> CompiledKernel:
    """Return the kernel that copies rows to channels last, zero-padded at both ends; a work-item copies one row."""
    words = {"T": ctype(context, dtype), "lanes": str(min(MAX_PLANES, lanes_of(context, dtype)))}
    words["numbers"] = ", ".join(f"p[j + {v} * c_step]" for v in range(int(words["lanes"])))
    words["copy"] = Template(_PLANES_LAST if last else _PLANES_FIRST).safe_substitute(
        words, buffer=context.language.keywords["buffer"]
    )
    numbers = [
        *("base", "rows", "columns", "channels", "n_step", "c_step", "h_step", "w_step", "h_least", "w_size"),
        "w_least",
    ]
    buffers = [Buffer("image", dtype), Buffer("planes", dtype, True)]
    return build(context, f"conv_rows_{'last' if last else 'first'}_{dtype}", buffers, numbers, _PLANES, words)


_PACK = """
  const index_t parts = (inner + $side - 1) / $side, tiles = (m + $width - 1) / $width;
  const index_t rest = gid / parts, c0 = (gid - rest * parts) * $side, g = (tile0 + rest) / tiles;
  const index_t row = (tile0 + rest - g * tiles) * $width, c1 = c0 + $side < inner ? c0 + $side : inner;
  $buffer $T* const to = packed + rest * h_taps * w_taps * inner * $width;
  $buffer const $T* const from = filter + g * g_step + row * m_step + h_tap * w_all + w_tap;
  $vectors
"""
_PACK_VECTOR = """{
    $rows
    for (index_t c = c0; c < c1; ++c)
      for (index_t h = 0; h < h_taps; ++h)
        for (index_t w = 0; w < w_taps; ++w) {
          $buffer const $T* const p = from + c * c_step + h * h_tap_step * w_all + w * w_tap_step;
          vstore$lanes(($T$lanes)($numbers), 0, to + ((h * w_taps + w) * inner + c) * $width + $first);
        }
  }"""


@cached_per_context
def pack_kernel(context: Context, dtype: str, tile: Tile) -> CompiledKernel:
    """Return the kernel that packs the tiles of a filter, from ``tile0`` on, each to [taps, channels, width].

    Padding filters repeat the last filter; their results are not stored.
    """
    numbers = [
        *("tile0", "inner", "m", "g_step", "m_step", "c_step", "w_all"),
        *(f"{dim}_{what}" for what in ("taps", "tap", "tap_step") for dim in "hw"),
    ]
    words = {
        "T": ctype(context, dtype),
        "side": str(PACK_SIZE),
        "width": str(tile.width),
        "buffer": context.language.keywords["buffer"],
    }
    words["vectors"] = " ".join(
        Template(_PACK_VECTOR).substitute(
            words,
            lanes=lanes,
            first=first,
            numbers=", ".join(f"p[r{i}]" for i in range(lanes)),
            rows=" ".join(
                f"const index_t r{i} = (row + {first + i} < m ? {first + i} : m - 1 - row) * m_step;"
                for i in range(lanes)
            ),
        )
        for _, lanes, first in tile.vectors()
    )
    buffers = [Buffer("filter", dtype), Buffer("packed", dtype, True)]
    return build(context, f"conv_packed_{'x'.join(map(str, tile.lanes))}_{dtype}", buffers, numbers, _PACK, words)


# Windows -----------------------------------------------------------------------------------------------------------

_WINDOWS = """
  const index_t column_tiles = (w_count + $last_row) / $rows, tiles = (m + $width - 1) / $width;
  index_t rest = gid / column_tiles, here = 0;
  const index_t ct = gid - rest * column_tiles;
  if (near) { here = rest % count; rest /= count; }
  const index_t oh = rest % h_count; rest /= h_count;
  const index_t n = rest % images, g = (tile0 + (here += rest / images)) / tiles;
  const index_t i0 = (tile0 + here - g * tiles) * $width;
  const index_t ow = ct * $rows + $rows <= w_count ? ct * $rows : w_count - $rows, skip = ct * $rows - ow;
  const index_t step = w_stride * channels;
  const index_t y = h_least + oh * h_stride, h0 = y < 0 ? (h_reach - 1 - y) / h_reach : 0;
  const index_t h_all = y < rows ? (rows - 1 - y) / h_reach + 1 : 0, h1 = h_all < h_taps ? h_all : h_taps;
  $buffer const $T* w = packed + (here * h_taps + h0) * w_outer * run * $width;
  $buffer const $T* const start = image + first + ((n * rows + y) * columns + ow * w_stride) * channels + g * inner;
  $declare
  for (index_t h = h0; h < h1; ++h)
    for (index_t t = 0; t < w_outer; ++t) {
      $buffer const $T* const p = start + (h * h_reach * columns + t * w_reach) * channels;
      for (index_t k = 0; k < run; ++k, w += $width) {
        $multiply
      }
    }
  const index_t at = base + n * n_step + (g * m + i0) * c_step + oh * h_step + ow * w_step;
  const index_t filters = m - i0 < $width ? m - i0 : $width;
  $store
"""
_STORE = """
    $T edge[$size];
    $spill
    for (index_t i = 0; i < filters; ++i)
      for (index_t p = skip; p <= $last_row; ++p) out[at + i * c_step + p * w_step] = edge[p * $width + i];
"""


def windows_body(context: Context, dtype: str, tile: Tile, last: bool) -> str:
    """Return the text of a work-item of :func:`windows_kernel`."""
    kind, rows, vectors = ctype(context, dtype), range(tile.rows), tile.vectors()
    declare, lines = _sums(kind, tile), _loads(kind, tile, "w")
    lines += [_multiply(context, kind, tile, p, f"p[k + {p} * step]") for p in rows]
    spill = " ".join(
        f"vstore{lanes}(a{p}_{v}, 0, edge + {p * tile.width + first});" for p in rows for v, lanes, first in vectors
    )
    store = _STORE.replace("$spill", spill).replace("$size", str(tile.rows * tile.width))
    if last:
        full_store = " ".join(
            f"if ({p} >= skip) {{ "
            + " ".join(f"vstore{lanes}(a{p}_{v}, 0, out + at + {first} + {p} * w_step);" for v, lanes, first in vectors)
            + " }"
            for p in rows
        )
        store = f"if (filters == $width) {{ {full_store} }} else {{ {store} }}"
    words = {"T": kind, "rows": str(tile.rows), "last_row": str(tile.rows - 1), "width": str(tile.width)}
    for name, text in words.items():
        store = store.replace(f"${name}", text)
    words |= {"declare": declare, "multiply": "\n        ".join(lines), "store": store}
    return Template(_WINDOWS).safe_substitute(words)


@cached_per_context
def windows_kernel(context: Context, dtype: str, tile: Tile, last: bool) -> CompiledKernel:
    """Return the kernel that multiplies ``count`` tiles of a packed filter by the windows of an image.

    ``last``: whether outputs have channels last. The kernel's ``near``: whether all tiles read a row of the image
    before the next row, which keeps the packed filter in the cache; otherwise the image stays there.
    """
    numbers = [
        *("near", "count", "tile0", "images", "channels", "inner", "m", "first", "rows", "h_least", "columns"),
        *("h_count", "w_count", "h_stride", "w_stride", "h_reach", "w_reach", "h_taps", "w_outer", "run", "base"),
        *("n_step", "c_step", "h_step", "w_step"),
    ]
    buffers = [Buffer("image", dtype), Buffer("packed", dtype), Buffer("out", dtype, True)]
    name = f"conv_windows_{tile.name}_{'last' if last else 'first'}_{dtype}"
    return build(context, name, buffers, numbers, windows_body(context, dtype, tile, last))


def _sums(kind: str, tile: Tile) -> str:
    """Return the text that declares the sums of a tile."""
    return " ".join(
        f"{kind}{lanes} a{p}_{v} = ({kind}{lanes})(0);" for p in range(tile.rows) for v, lanes, _ in tile.vectors()
    )


def _loads(kind: str, tile: Tile, pointer: str) -> list[str]:
    """Return the statements that load the vectors of filters."""
    return [f"const {kind}{lanes} b{v} = vload{lanes}(0, {pointer} + {first});" for v, lanes, first in tile.vectors()]


def _multiply(context: Context, kind: str, tile: Tile, row: int, number: str) -> str:
    """Return the statement that adds a number times the vectors to the sums of a row."""
    fma = context.language.math.get("fma")
    parts = [f"const {kind} y = {number};"]
    for v, lanes, _ in tile.vectors():
        total, broadcast = f"a{row}_{v}", f"({kind}{lanes})(y)"
        parts.append(f"{total} = {fma}({broadcast}, b{v}, {total});" if fma else f"{total} += {broadcast} * b{v};")
    return "{ " + " ".join(parts) + " }"


# The filter's gradient ---------------------------------------------------------------------------------------------

_FILTER = """
  const index_t run_tiles = (run + $last_row) / $rows, tiles = (m + $width - 1) / $width;
  index_t rest = gid;
  const index_t kt = rest % run_tiles; rest /= run_tiles;
  const index_t t = rest % w_outer; rest /= w_outer;
  const index_t h = rest % h_taps, gt = rest / h_taps, g = gt / tiles, i0 = (gt - g * tiles) * $width;
  const index_t k = kt * $rows + $rows <= run ? kt * $rows : run - $rows, skip = kt * $rows - k;
  const index_t step = w_stride * channels, pitch = groups * m;
  $buffer $T* const to = total + (((gt * h_taps + h) * w_outer + t) * run + k) * $width;
  $declare
  int added = add != 0;
  index_t left = $block;
  for (index_t r = r0; r < r1; ++r) {
    const index_t n = r / h_count, at = h_least + (r - n * h_count) * h_stride + h * h_reach;
    if (at < 0 || at >= rows) continue;
    $buffer const $T* p = image + first + ((n * rows + at) * columns + t * w_reach) * channels + g * inner + k;
    $buffer const $T* y = windows + r * w_count * pitch + g * m + i0;
    for (index_t o = 0; o < w_count;) {
      const index_t end = o + left < w_count ? o + left : w_count;
      left -= end - o;
      for (; o < end; ++o, p += step, y += pitch) {
        $multiply
      }
      if (left == 0) {
        $store
        $again
        added = 1;
        left = $block;
      }
    }
  }
  $store
"""


def filter_body(context: Context, dtype: str, tile: Tile) -> str:
    """Return the text of a work-item of :func:`filter_kernel`."""
    kind = ctype(context, dtype)
    lines, stores = _loads(kind, tile, "y"), []
    for p in range(tile.rows):
        lines.append(_multiply(context, kind, tile, p, f"p[{p}]"))
        for v, lanes, first in tile.vectors():
            address = f"0, to + {p * tile.width + first}"
            a = f"a{p}_{v}"
            stores.append(
                f"if ({p} >= skip) {{ if (added) {a} += vload{lanes}({address}); vstore{lanes}({a}, {address}); }}"
            )
    words = {
        "T": kind,
        "rows": str(tile.rows),
        "last_row": str(tile.rows - 1),
        "width": str(tile.width),
        "declare": _sums(kind, tile),
        "multiply": "\n      ".join(lines),
        "store": "\n  ".join(stores),
        "again": " ".join(
            f"a{p}_{v} = ({kind}{lanes})(0);" for p in range(tile.rows) for v, lanes, _ in tile.vectors()
        ),
        "block": str(REGISTER_SUM_TERMS),
    }
    return Template(_FILTER).safe_substitute(words)


@cached_per_context
def filter_kernel(context: Context, dtype: str, tile: Tile) -> CompiledKernel:
    """Return the kernel that adds the products of windows' rows [r0, r1) and their inputs to a filter's gradient."""
    numbers = [
        *("groups", "channels", "inner", "m", "first", "rows", "h_least", "columns", "h_count", "w_count"),
        *("h_stride", "w_stride", "h_reach", "w_reach", "h_taps", "w_outer", "run", "r0", "r1", "add"),
    ]
    buffers = [Buffer("image", dtype), Buffer("windows", dtype), Buffer("total", dtype, True)]
    return build(context, f"conv_sums_{tile.name}_{dtype}", buffers, numbers, filter_body(context, dtype, tile))


_UNPACK = """
  const index_t c = gid % inner, gi = gid / inner, g = gi / m, i = gi - g * m, tiles = (m + width - 1) / width;
  const index_t tile = i / width;
  for (index_t t = 0; t < taps; ++t)
    out[gid * taps + t] = total[(((g * tiles + tile) * taps + t) * inner + c) * width + i - tile * width];
"""


@cached_per_context
def unpack_kernel(context: Context, dtype: str) -> CompiledKernel:
    """Return the kernel that unpacks sums [groups, tiles, taps, channels, width] to a filter, a channel a work-item."""
    buffers = [Buffer("total", dtype), Buffer("out", dtype, True)]
    return build(context, f"conv_unpacked_{dtype}", buffers, ["inner", "m", "width", "taps"], _UNPACK)
