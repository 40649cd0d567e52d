"""grid_sampler and its gradient, image by image: the four pixels around all places one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .rows import row_adder

Corner = tuple[Any, Any, Any, float, float]


def _corners(xp: Any, grid: Any, height: int, width: int) -> Iterator[Corner]:
    """Yield, for each of the four pixels around the places [places, 2]: its number in the image, its weights in x and
    in y (0 where it is outside), and which way they grow.
    """
    sides = []
    for column, size in ((0, width), (1, height)):
        at = (grid[:, column] + 1.0) * (0.5 * (size - 1))
        low = xp.floor(at)
        far = at - low
        sides.append([(low, 1.0 - far, -1.0), (low + 1.0, far, 1.0)])
    for y, in_y, down in sides[1]:
        for x, in_x, along in sides[0]:
            inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
            nothing = xp.zeros_like(x)
            row, column = (xp.astype(xp.where(inside, each, nothing), xp.int64) for each in (y, x))
            weights = (xp.where(inside, each, nothing) for each in (in_x, in_y))
            yield row * width + column, *weights, along, down


@register_kernel("grid_sampler", "array")
def grid_sampler(call: Call, context: Context) -> Any:
    """Out = the sum of the four pixels with their weights."""
    xp, (images, channels, height, width) = context.xp, call.dims("X")
    rows, columns = call.dims("Grid")[1:3]

    def run(context: Context, io: IO) -> None:
        x, grid, out = io.array("X"), io.array("Grid"), io.array("Output")
        for n in range(images):
            image = xp.reshape(x[n, ...], (channels, height * width))
            total = None
            for pixel, in_x, in_y, _, _ in _corners(xp, xp.reshape(grid[n, ...], (-1, 2)), height, width):
                part = xp.take(image, pixel, axis=1) * (in_x * in_y)
                total = part if total is None else total + part
            out[n, ...] = xp.reshape(total, (channels, rows, columns))

    return run


@register_kernel("grid_sampler_grad", "array")
def grid_sampler_grad(call: Call, context: Context) -> Any:
    """The gradients are sent back to the four pixels, and multiplied with them for the places."""
    xp, (images, channels, height, width) = context.xp, call.dims("X")
    places, dtype = prod(call.dims("Grid")[1:3]), getattr(context.xp, call.dtype("Output@GRAD"))
    add = row_adder((height * width, channels), call.dtype("Output@GRAD"), context)

    def run(context: Context, io: IO) -> None:
        x, grid, dout = io.array("X"), io.array("Grid"), io.array("Output@GRAD")
        for n in range(images):
            image = xp.reshape(x[n, ...], (channels, height * width))
            given = xp.reshape(dout[n, ...], (channels, places))
            corners = list(_corners(xp, xp.reshape(grid[n, ...], (-1, 2)), height, width))
            if io.has("X@GRAD"):
                sums = xp.zeros((height * width, channels), dtype=dtype)
                for pixel, in_x, in_y, _, _ in corners:
                    add(sums, pixel, xp.permute_dims(given * (in_x * in_y), (1, 0)), sums)
                io.array("X@GRAD")[n, ...] = xp.reshape(xp.permute_dims(sums, (1, 0)), (channels, height, width))
            if io.has("Grid@GRAD"):
                d_x, d_y = xp.zeros((places,), dtype=dtype), xp.zeros((places,), dtype=dtype)
                for pixel, in_x, in_y, along, down in corners:
                    product = xp.sum(xp.take(image, pixel, axis=1) * given, axis=0)
                    d_x, d_y = d_x + product * in_y * along, d_y + product * in_x * down
                both = xp.stack([d_x * (0.5 * (width - 1)), d_y * (0.5 * (height - 1))], axis=-1)
                io.array("Grid@GRAD")[n, ...] = xp.reshape(both, call.dims("Grid")[1:])

    return run
