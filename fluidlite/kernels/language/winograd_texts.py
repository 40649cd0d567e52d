"""Sources of the transforms of Winograd's convolution F(2 x 2, 3 x 3): of filters, images and windows.

Two by two windows of a 3 x 3 filter read 4 x 4 elements: sixteen multiplications of transforms replace thirty-six,
``Y = A'[(G g G') * (B' d B)]A`` (Lavin and Gray, 2016, Fast Algorithms for Convolutional Neural Networks, section 4.1).
Transforms add and subtract; vectors run along channels or filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import Template

from fluidlite.plugin import Context

from . import conv_vectors
from .conv_vectors import PACK_SIZE, Tile
from .source import Buffer, CompiledKernel, build, cached_per_context, ctype

SPOTS = 16
"""Elements of a transformed tile."""
MAX_LANES = 16
"""Maximum lanes of a vector of channels or filters."""

Transform = Callable[[Sequence[str]], list[str]]


def _of_image(d: Sequence[str]) -> list[str]:
    """Return B' times four elements."""
    return [f"{d[0]} - {d[2]}", f"{d[1]} + {d[2]}", f"{d[2]} - {d[1]}", f"{d[1]} - {d[3]}"]


def _of_filter(g: Sequence[str]) -> list[str]:
    """Return G times three elements."""
    half = "0.5f * ({0} {3} {1} + {2})"
    return [g[0], half.format(*g, "+"), half.format(*g, "-"), g[2]]


def _to_windows(y: Sequence[str]) -> list[str]:
    """Return A times two elements."""
    return [y[0], f"{y[0]} + {y[1]}", f"{y[0]} - {y[1]}", f"-{y[1]}"]


def _to_filter(m: Sequence[str]) -> list[str]:
    """Return G' times four elements."""
    half = "0.5f * ({1} {4} {2})"
    return [f"{m[0]} + {half.format(*m, '+')}", half.format(*m, "-"), f"{half.format(*m, '+')} + {m[3]}"]


def _of_windows(m: Sequence[str]) -> list[str]:
    """Return A' times four elements."""
    return [f"{m[0]} + {m[1]} + {m[2]}", f"{m[1]} - {m[2]} - {m[3]}"]


def _transform_square(kind: str, transform: Transform, source: str, side: int, target: str) -> tuple[str, int]:
    """Return the statements that transform the columns, then the rows, of a square of variables, and the new side."""
    text, size = [], 0
    for j in range(side):
        transformed = transform([f"{source}{i}{j}" for i in range(side)])
        size = len(transformed)
        text += [f"const {kind} {target}_{i}{j} = {element};" for i, element in enumerate(transformed)]
    for i in range(size):
        transformed = transform([f"{target}_{i}{j}" for j in range(side)])
        text += [f"const {kind} {target}{i}{j} = {element};" for j, element in enumerate(transformed)]
    return "\n      ".join(text), size


def _lanes_of(context: Context, dtype: str) -> int:
    return min(MAX_LANES, conv_vectors.lanes_of(context, dtype))


def _square(side: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(side) for j in range(side)]


def _window_exists(i: int, j: int) -> str:
    """Return the condition that a window of tile ``k`` of a run exists: the last row and column may be half a tile."""
    return " && ".join(name for name, is_needed in (("below[k]", i), ("right[k]", j)) if is_needed) or "1"


# The image ---------------------------------------------------------------------------------------------------------

_PLACE = """
  const index_t tile = tile0 + gid, line = tile / w_tiles, tx = tile - line * w_tiles;
  const index_t n = line / h_tiles, ty = line - n * h_tiles;
"""
_IMAGE = (
    _PLACE
    + """
  const index_t y = h_least + 2 * ty, x = w_least + 2 * tx;
  $buffer const $T* const from = image + base + n * n_step + y * h_step + x * w_step;
  $buffer $T* const to = made + gid * pitch;
  for (index_t at = 0; at < channels; at += $lanes) {
      const index_t c = at + $lanes <= channels ? at : channels - $lanes;
      $read
      $transform
      $write
  }
"""
)


def image_body(context: Context, dtype: str) -> str:
    """Return the text that transforms a tile of an image with channels last; elements outside of it are zeros."""
    kind, lanes = ctype(context, dtype), _lanes_of(context, dtype)
    vector = f"{kind}{lanes}"
    read = [
        f"{vector} d{i}{j} = ({vector})(0); if (y + {i} >= 0 && y + {i} < h_size && x + {j} >= 0 && x + {j} < w_size) "
        f"d{i}{j} = vload{lanes}(0, from + {i} * h_step + {j} * w_step + c);"
        for i, j in _square(4)
    ]
    transform, side = _transform_square(vector, _of_image, "d", 4, "u")
    write = [f"vstore{lanes}(u{i}{j}, 0, to + {i * side + j} * channels + c);" for i, j in _square(side)]
    words = {"T": kind, "lanes": str(lanes), "read": "\n      ".join(read), "transform": transform}
    words["write"] = "\n      ".join(write)
    return Template(_IMAGE).safe_substitute(words)


@cached_per_context
def image_kernel(context: Context, dtype: str) -> CompiledKernel:
    """Return the kernel that transforms tiles of an image to [tiles, 16, channels]; a work-item transforms one."""
    numbers = [
        *("tile0", "h_tiles", "w_tiles", "channels", "pitch", "base", "n_step", "h_step", "w_step"),
        *("h_least", "w_least", "h_size", "w_size"),
    ]
    buffers = [Buffer("image", dtype), Buffer("made", dtype, True)]
    return build(context, f"winograd_image_{dtype}", buffers, numbers, image_body(context, dtype))


# The filter --------------------------------------------------------------------------------------------------------

_CHANNELS = """
  const index_t parts = (inner + $side - 1) / $side, tiles = (m + $width - 1) / $width;
  const index_t rest = gid / parts, c0 = (gid - rest * parts) * $side, g = rest / tiles;
  const index_t row = (rest - g * tiles) * $width, c1 = c0 + $side < inner ? c0 + $side : inner;
  $T taps[$all];
"""
_FILTER = (
    _CHANNELS
    + """
  for (index_t c = c0; c < c1; ++c) {
    for (index_t k = 0; k < $width; ++k) {
      const index_t f = row + k < m ? row + k : m - 1;
      $buffer const $T* const p = filter + g * g_step + f * m_step + c * c_step + h_tap * 3 + w_tap;
      for (index_t i = 0; i < 3; ++i)
        for (index_t j = 0; j < 3; ++j) taps[(i * 3 + j) * $width + k] = p[i * h_tap_step * 3 + j * w_tap_step];
    }
    $buffer $T* const to = packed + (rest * inner + c) * $width;
    $vectors
  }
"""
)


@cached_per_context
def filter_kernel(context: Context, dtype: str, tile: Tile) -> CompiledKernel:
    """Return the kernel that transforms a filter and packs each of its 16 elements to [tiles, channels, width].

    Padding filters repeat the last filter; their results are not stored.
    """
    kind, vectors = ctype(context, dtype), []
    for _, lanes, first in tile.vectors():
        vector = f"{kind}{lanes}"
        read = [
            f"const {vector} g{i}{j} = vload{lanes}(0, taps + {(i * 3 + j) * tile.width + first});"
            for i, j in _square(3)
        ]
        transform, side = _transform_square(vector, _of_filter, "g", 3, "u")
        write = [f"vstore{lanes}(u{i}{j}, 0, to + {i * side + j} * spot + {first});" for i, j in _square(side)]
        vectors += ["{", *read, transform.replace("0.5f", f"({vector})(0.5f)"), *write, "}"]
    words = {"T": kind, "side": str(PACK_SIZE), "width": str(tile.width), "all": str(9 * tile.width)}
    words["vectors"] = "\n      ".join(vectors)
    numbers = ["inner", "m", "spot", "g_step", "m_step", "c_step", "h_tap", "w_tap", "h_tap_step", "w_tap_step"]
    name = f"winograd_filter_{'x'.join(map(str, tile.lanes))}_{dtype}"
    return build(context, name, [Buffer("filter", dtype), Buffer("packed", dtype, True)], numbers, _FILTER, words)


# The windows -------------------------------------------------------------------------------------------------------

_RUN = """
  const index_t begin = gid * $run, run = begin + $run < tiles ? $run : tiles - begin;
  index_t starts[$run], below[$run], right[$run], complete = 1;
  for (index_t k = 0; k < run; ++k) {
    const index_t tile = tile0 + begin + k, line = tile / w_tiles, tx = tile - line * w_tiles;
    const index_t n = line / h_tiles, ty = line - n * h_tiles;
    starts[k] = n * $n_step + 2 * (ty * $h_step + tx * $w_step);
    below[k] = 2 * ty + 1 < h_count;
    right[k] = 2 * tx + 1 < w_count;
    complete = complete && below[k] && right[k];
  }
"""
_WINDOWS = (
    _RUN
    + """
  const index_t filters = groups * m;
  $T wrong[$all];
  for (index_t k = 0; k < run * $lanes; ++k) wrong[k] = 0;
  for (index_t at = 0; at < filters; at += $lanes) {
    const index_t c = at + $lanes <= filters ? at : filters - $lanes;
    $stage
    for (index_t k = 0; k < run; ++k) {
      $buffer const $T* const from = sums + (begin + k) * pitch;
      $buffer $T* const to = out + out_base + starts[k] + c * out_c_step;
      $read
      $transform
      $V sum = vload$lanes(0, wrong + k * $lanes);
      sum += (y00 - y00) + (y01 - y01) + (y10 - y10) + (y11 - y11);
      vstore$lanes(sum, 0, wrong + k * $lanes);
      $write
    }
    $scatter
  }
  for (index_t k = 0; k < run; ++k) {
    int whole = 1;
    for (int v = 0; v < $lanes; ++v) if (wrong[k * $lanes + v] != 0) whole = 0;
    const index_t tile = tile0 + begin + k, line = tile / w_tiles, tx = tile - line * w_tiles;
    const index_t n = line / h_tiles, ty = line - n * h_tiles;
    for (index_t e = whole == 0 ? 0 : 4 * filters; e < 4 * filters; ++e) {
      const index_t f = e / 4, i = e / 2 % 2, j = e % 2, g = f / m;
      const index_t y = h_least + 2 * ty + i, x = w_least + 2 * tx + j;
      $buffer const $T* const p = image + base + n * n_step + y * h_step + x * w_step + g * inner;
      $buffer const $T* const q = filter + g * g_step + (f - g * m) * m_step + h_tap * 3 + w_tap;
      $T sum = 0;
      for (index_t h = y < 0 ? -y : 0; h < 3 && y + h < h_size && sum == sum; ++h)
        for (index_t w = x < 0 ? -x : 0; w < 3 && x + w < w_size && sum == sum; ++w)
          for (index_t c = 0; c < inner && sum == sum; ++c)
            sum += p[h * h_step + w * w_step + c] * q[h * h_tap_step * 3 + w * w_tap_step + c * c_step];
      if ((i == 0 || below[k]) && (j == 0 || right[k]))
        out[out_base + starts[k] + i * out_h_step + j * out_w_step + f * out_c_step] = sum;
    }
  }
"""
)
_STAGE = "$T stage[$staged];"
_STAGED = "stage + (k * 4 + {spot}) * $lanes"
_EACH_LANE = """for (index_t v = 0; v < $lanes; ++v)
      for (index_t k = 0; k < run; ++k) {{
        {pointer} = {buffer} + starts[k] + (c + v) * {c_step};
        {staged} = stage + k * 4 * $lanes + v;
        if (complete) {{
          {every}
        }} else {{
          {existing}
        }}
      }}"""


def run_of(last: bool) -> int:
    """Return the tiles of a work-item that transforms windows, or spreads their gradients.

    With channels first, neighbours of a line of an image are accessed together: the lines of several channels may be
    in one set of the cache, which holds few of them.
    """
    return 1 if last else 8


def windows_body(context: Context, dtype: str, last: bool) -> str:
    """Return the text that transforms a run of tiles back to windows.

    A tile with an element that is not finite is recomputed directly, window by window: a transform turns infinities
    into NaN, and may overflow where no window does. A direct sum stops once it is NaN.
    """
    kind, lanes = ctype(context, dtype), _lanes_of(context, dtype)
    vector = f"{kind}{lanes}"
    read = [f"const {vector} m{i}{j} = vload{lanes}(0, from + {4 * i + j} * filters + c);" for i, j in _square(4)]
    transform, side = _transform_square(vector, _of_windows, "m", 4, "y")
    places = {(i, j): f"{i} * out_h_step + {j} * out_w_step" for i, j in _square(side)}
    if last:
        write = [
            f"if ({_window_exists(i, j)}) vstore{lanes}(y{i}{j}, 0, to + {place});" for (i, j), place in places.items()
        ]
        stage = scatter = ""
    else:
        stage = _STAGE
        write = [f"vstore{lanes}(y{i}{j}, 0, {_STAGED.format(spot=2 * i + j)});" for i, j in places]
        moves = {(i, j): f"p[{place}] = q[{2 * i + j} * $lanes];" for (i, j), place in places.items()}
        scatter = _EACH_LANE.format(
            pointer="$buffer $T* const p",
            buffer="out + out_base",
            staged="const $T* const q",
            c_step="out_c_step",
            every=" ".join(moves.values()),
            existing=" ".join(f"if ({_window_exists(i, j)}) {move}" for (i, j), move in moves.items()),
        )
    words = {"T": kind, "V": vector, "lanes": str(lanes), "run": str(run_of(last)), "transform": transform}
    words |= {"all": str(run_of(last) * lanes), "staged": str(run_of(last) * lanes * 4)}
    words |= {"n_step": "out_n_step", "h_step": "out_h_step", "w_step": "out_w_step"}
    text = Template(_WINDOWS).safe_substitute(
        read="\n      ".join(read), write="\n      ".join(write), stage=stage, scatter=scatter
    )
    return Template(text).safe_substitute(words)


GEOMETRY = (
    *("h_tiles", "w_tiles", "groups", "inner", "m", "base", "n_step", "h_step", "w_step"),
    *("h_least", "w_least", "h_size", "w_size", "g_step", "m_step", "c_step"),
    *("h_tap", "w_tap", "h_tap_step", "w_tap_step", "h_count", "w_count", "out_base", "out_n_step"),
    *("out_h_step", "out_w_step", "out_c_step"),
)
"""The numbers that tell where tiles, elements of a filter and windows lie."""


@cached_per_context
def windows_kernel(context: Context, dtype: str, last: bool) -> CompiledKernel:
    """Return the kernel that transforms [tiles, 16, filters] back to windows; a work-item transforms a run of tiles."""
    buffers = [Buffer("image", dtype), Buffer("filter", dtype), Buffer("sums", dtype), Buffer("out", dtype, True)]
    name, body = f"winograd_windows_{'last' if last else 'first'}_{dtype}", windows_body(context, dtype, last)
    return build(context, name, buffers, ["tile0", "tiles", "pitch", *GEOMETRY], body)


# The filter's gradient ---------------------------------------------------------------------------------------------

_SPREAD = (
    _RUN
    + """
  for (index_t at = 0; at < filters; at += $lanes) {
    const index_t c = at + $lanes <= filters ? at : filters - $lanes;
    $stage
    $gather
    for (index_t k = 0; k < run; ++k) {
      $buffer const $T* const from = windows + base + starts[k] + c * c_step;
      $buffer $T* const to = made + (begin + k) * $spots * filters;
      $read
      $transform
      $write
    }
  }
"""
)


def spread_body(context: Context, dtype: str, last: bool) -> str:
    """Return the text that transforms a run of tiles of windows' gradients.

    With Y as above, the gradient of the filter is ``G'[(B' d B) * (A y A')]G`` for gradients ``y`` of windows.
    """
    kind, lanes = ctype(context, dtype), _lanes_of(context, dtype)
    vector = f"{kind}{lanes}"
    places = {(i, j): f"{i} * h_step + {j} * w_step" for i, j in _square(2)}
    if last:
        read = [
            f"{vector} y{i}{j} = ({vector})(0); if ({_window_exists(i, j)}) y{i}{j} = vload{lanes}(0, from + {place});"
            for (i, j), place in places.items()
        ]
        stage = gather = ""
    else:
        stage = _STAGE
        read = [f"const {vector} y{i}{j} = vload{lanes}(0, {_STAGED.format(spot=2 * i + j)});" for i, j in places]
        moves = {(i, j): f"q[{2 * i + j} * $lanes] = p[{place}];" for (i, j), place in places.items()}
        gather = _EACH_LANE.format(
            pointer="$buffer const $T* const p",
            buffer="windows + base",
            staged="$T* const q",
            c_step="c_step",
            every=" ".join(moves.values()),
            existing=" ".join(
                f"q[{2 * i + j} * $lanes] = 0; if ({_window_exists(i, j)}) {move}" for (i, j), move in moves.items()
            ),
        )
    transform, side = _transform_square(vector, _to_windows, "y", 2, "u")
    write = [f"vstore{lanes}(u{i}{j}, 0, to + {i * side + j} * filters + c);" for i, j in _square(side)]
    words = {"T": kind, "lanes": str(lanes), "spots": str(SPOTS), "run": str(run_of(last)), "transform": transform}
    words |= {"staged": str(run_of(last) * lanes * 4), "n_step": "n_step", "h_step": "h_step", "w_step": "w_step"}
    text = Template(_SPREAD).safe_substitute(
        read="\n      ".join(read), write="\n      ".join(write), stage=stage, gather=gather
    )
    return Template(text).safe_substitute(words)


@cached_per_context
def spread_kernel(context: Context, dtype: str, last: bool) -> CompiledKernel:
    """Return the kernel that transforms windows' gradients to [tiles, 16, filters]; a work-item transforms a run."""
    numbers = [
        *("tile0", "tiles", "h_tiles", "w_tiles", "filters", "base", "n_step", "h_step", "w_step", "c_step"),
        *("h_count", "w_count"),
    ]
    buffers = [Buffer("windows", dtype), Buffer("made", dtype, True)]
    name = f"winograd_spread_{'last' if last else 'first'}_{dtype}"
    return build(context, name, buffers, numbers, spread_body(context, dtype, last))


_GRADIENT = (
    _CHANNELS
    + """
  const index_t spot = groups * tiles * inner * $width;
  for (index_t c = c0; c < c1; ++c) {
    $buffer const $T* const from = total + (rest * inner + c) * $width;
    $vectors
    for (index_t k = 0; k < $width && row + k < m; ++k) {
      $buffer $T* const to = out + ((g * m + row + k) * inner + c) * 9;
      int whole = 1;
      for (int t = 0; t < 9; ++t) {
        to[t] = taps[t * $width + k];
        if (to[t] - to[t] != 0) whole = 0;
      }
      for (index_t t = whole == 0 ? 0 : 9; t < 9; ++t) {
        const index_t h = t / 3, w = t - 3 * h;
        $buffer const $T* const p = image + (g * inner + c) * c_step;
        $buffer const $T* const q = windows + (g * m + row + k) * y_c_step;
        $T sum = 0;
        for (index_t n = 0; n < images && sum == sum; ++n)
          for (index_t i = 0; i < h_count && sum == sum; ++i) {
            const index_t y = h_least + i + h;
            for (index_t j = y < 0 || y >= h_size ? w_count : 0; j < w_count && sum == sum; ++j) {
              const index_t x = w_least + j + w;
              if (x >= 0 && x < w_size)
                sum += p[n * n_step + y * h_step + x * w_step] * q[n * y_n_step + i * y_h_step + j * y_w_step];
            }
          }
        to[t] = sum;
      }
    }
  }
"""
)


@cached_per_context
def gradient_kernel(context: Context, dtype: str, tile: Tile) -> CompiledKernel:
    """Return the kernel that transforms the sums [16, tiles, channels, width] back to a filter's gradient.

    The nine elements of a channel and filter are recomputed directly if one of them is not finite.
    """
    kind, vectors = ctype(context, dtype), []
    for _, lanes, first in tile.vectors():
        vector = f"{kind}{lanes}"
        read = [
            f"const {vector} m{i}{j} = vload{lanes}(0, from + {4 * i + j} * spot + {first});" for i, j in _square(4)
        ]
        transform, side = _transform_square(vector, _to_filter, "m", 4, "u")
        write = [f"vstore{lanes}(u{i}{j}, 0, taps + {(i * side + j) * tile.width + first});" for i, j in _square(side)]
        vectors += ["{", *read, transform.replace("0.5f", f"({vector})(0.5f)"), *write, "}"]
    words = {"T": kind, "side": str(PACK_SIZE), "width": str(tile.width), "all": str(9 * tile.width)}
    words["vectors"] = "\n      ".join(vectors)
    numbers = [
        *("groups", "inner", "m", "images", "n_step", "h_step", "w_step", "c_step", "h_least", "w_least"),
        *("h_size", "w_size", "y_n_step", "y_h_step", "y_w_step", "y_c_step", "h_count", "w_count"),
    ]
    buffers = [Buffer("total", dtype), Buffer("image", dtype), Buffer("windows", dtype), Buffer("out", dtype, True)]
    name = f"winograd_gradient_{'x'.join(map(str, tile.lanes))}_{dtype}"
    return build(context, name, buffers, numbers, _GRADIENT, words)
