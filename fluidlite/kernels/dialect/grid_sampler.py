"""grid_sampler and its gradient."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .source import Buffer, build, ctype, dealt, function

_NUMBERS = ["channels", "height", "width", "places"]

# The four pixels around place number `at`: weights of those outside are 0, and so are their numbers.
_AROUND = """
  const $T px = (grid[2 * ($at)] + 1) * ($T)(width - 1) / 2, py = (grid[2 * ($at) + 1] + 1) * ($T)(height - 1) / 2;
  const $T x0 = $floor(px), y0 = $floor(py), fx = px - x0, fy = py - y0;
  $T in_x[4], in_y[4]; index_t pixel[4];
  for (int k = 0; k < 4; ++k) {
    const $T x = x0 + (k & 1), y = y0 + (k >> 1);
    const int inside = x >= 0 && x < width && y >= 0 && y < height;
    in_x[k] = inside ? ((k & 1) ? fx : 1 - fx) : 0;
    in_y[k] = inside ? ((k >> 1) ? fy : 1 - fy) : 0;
    pixel[k] = inside ? (index_t)y * width + (index_t)x : 0;
  }
"""

LANES = 64
"""Places that one item reads."""

# All channels of some places an item, a channel after the other.
_SAMPLE = (
    """
  const index_t chunks = (places + $lanes - 1) / $lanes, image = gid / chunks, from = (gid - image * chunks) * $lanes;
  const int count = places - from < $lanes ? (int)(places - from) : $lanes;
  $T across[4][$lanes], down[4][$lanes]; index_t where[4][$lanes];
  for (int v = 0; v < count; ++v) {
"""
    + _AROUND
    + """
    for (int k = 0; k < 4; ++k) { across[k][v] = in_x[k]; down[k][v] = in_y[k]; where[k][v] = pixel[k]; }
  }
  for (index_t c = 0; c < channels; ++c) {
    const index_t plane = (image * channels + c) * height * width, to = (image * channels + c) * places + from;
    for (int v = 0; v < count; ++v) {
      $T sum = x[plane + where[0][v]] * across[0][v] * down[0][v];
      sum += x[plane + where[1][v]] * across[1][v] * down[1][v];
      sum += x[plane + where[2][v]] * across[2][v] * down[2][v];
      out[to + v] = sum + x[plane + where[3][v]] * across[3][v] * down[3][v];
    }
  }
"""
)

# The gradient of a place an item.
_PLACES = (
    "  const index_t image = gid / places, place = gid - image * places;"
    + _AROUND
    + """
  $T d_x = 0, d_y = 0;
  for (index_t c = 0; c < channels; ++c) {
    const index_t plane = image * channels + c;
    const $T given = dout[plane * places + place];
    for (int k = 0; k < 4; ++k) {
      const $T product = x[plane * height * width + pixel[k]] * given;
      d_x += (k & 1) ? product * in_y[k] : -product * in_y[k];
      d_y += (k >> 1) ? product * in_x[k] : -product * in_x[k];
    }
  }
  out[2 * gid] = d_x * ($T)(width - 1) / 2;
  out[2 * gid + 1] = d_y * ($T)(height - 1) / 2;
"""
)

# A plane of X's gradient an item: it goes through all places in order, so that sums repeat.
_PIXELS = (
    """
  const index_t image = gid / channels;
  for (index_t i = 0; i < height * width; ++i) out[gid * height * width + i] = 0;
  for (index_t place = 0; place < places; ++place) {
"""
    + _AROUND
    + """
    const $T given = dout[gid * places + place];
    for (int k = 0; k < 4; ++k) out[gid * height * width + pixel[k]] += given * in_x[k] * in_y[k];
  }
"""
)


def _kernel(call: Call, context: Context, name: str, read: tuple[str, ...], text: str, at: str) -> Any:
    dtype = call.dtype("X")
    buffers = [*(Buffer(slot, dtype) for slot in read), Buffer("out", dtype, True)]
    words = {"T": ctype(context, dtype), "floor": function(context, "floor", dtype), "at": at, "lanes": str(LANES)}
    return build(context, f"grid_sampler_{name}_{dtype}", buffers, _NUMBERS, text.replace("$at", at), words)


def _numbers(call: Call) -> tuple[int, int, tuple[int, ...]]:
    """Return the numbers of images and places, and the scalars of the kernels."""
    images, channels, height, width = call.dims("X")
    places = call.dims("Grid")[1] * call.dims("Grid")[2]
    return images, places, (channels, height, width, places)


@register_kernel("grid_sampler", "dialect")
def grid_sampler(call: Call, context: Context) -> Any:
    """Some places an item."""
    images, places, numbers = _numbers(call)
    kernel = _kernel(call, context, "read", ("x", "grid"), _SAMPLE, "image * places + from + v")
    items = images * -(-places // LANES)

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span("X"), io.span("Grid"), io.span("Output")), numbers, dealt(items))

    return run


@register_kernel("grid_sampler_grad", "dialect")
def grid_sampler_grad(call: Call, context: Context) -> Any:
    """A plane of X's gradient an item; a place of Grid's."""
    images, places, numbers = _numbers(call)
    planes, items = images * numbers[0], images * places
    if call.has("X@GRAD"):
        spread = _kernel(call, context, "spread", ("grid", "dout"), _PIXELS, "image * places + place")
    if call.has("Grid@GRAD"):
        turn = _kernel(call, context, "turn", ("x", "grid", "dout"), _PLACES, "gid")

    def run(context: Context, io: IO) -> None:
        grid, dout = io.span("Grid"), io.span("Output@GRAD")
        if io.has("X@GRAD") and planes:
            spread(context, planes, (grid, dout, io.span("X@GRAD")), numbers, dealt(planes))
        if io.has("Grid@GRAD") and items:
            turn(context, items, (io.span("X"), grid, dout, io.span("Grid@GRAD")), numbers, dealt(items))

    return run
