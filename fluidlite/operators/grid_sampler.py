"""grid_sampler: an image read at any places, each from the four pixels around it."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.declare import operator
from fluidlite.program.operator_options import Differentiation

Side = tuple[e.Tensor, e.Tensor, e.Tensor]
"""A row or a column beside each place: which, its weight, whether it is one of the image (else the others are 0)."""


def _sides(places: e.Tensor, size: e.Number) -> list[Side]:
    at = (places + 1.0) * (0.5 * (size - 1))
    low = e.floor(at)
    far = at - low
    found = []
    for k, weight in ((low, 1.0 - far), (low + 1.0, far)):
        inside = e.logical_and(k >= 0, k <= size - 1)
        found.append((e.cast(e.where(inside, k, 0), "int64"), e.where(inside, weight, 0), inside))
    return found


@operator(
    "grid_sampler",
    Differentiation(
        reads=("X", "Grid"),
        doc="X@GRAD = the sum of Output@GRAD with the weights of its pixels; Grid@GRAD = Output@GRAD times the "
        "differences of neighbouring pixels",
        memory="in loops, Output@GRAD with its weight for each of four pixels: four times Output, and places",
    ),
    inputs={
        "X": "images, [images, channels, height, width], float32 or float64",
        "Grid": "[images, rows, columns, 2]: x, then y, from -1 (the first pixel) to 1 (the last)",
    },
    outputs=("Output",),
    dtypes={"X": FLOATS, "Grid": FLOATS},
    doc="Output[n, :, i, j] = X[n] at x = (Grid[n, i, j, 0] + 1) / 2 (width - 1) and y likewise, from the four pixels "
    "around it; 0 outside",
    source="Fluid grid_sampler_op.cc",
)
def grid_sampler(x: e.Tensor, grid: e.Tensor) -> e.Tensor:
    """Of each channel the pixels of an image are a line; outside of the image they weigh nothing."""
    e.same_dtype(grid, x)
    if x.rank != 4:
        e.fail("X", "[images, channels, height, width]")
    images, channels, height, width = x.dims
    for d in (height, width):
        e.need(d >= 1, "X", "images with a pixel or more")
    if grid.rank != 4:
        e.fail("Grid", "[images, rows, columns, 2]: x and y of each place")
    e.need(grid.dims[3] == 2, "Grid", "[images, rows, columns, 2]: x and y of each place")
    e.need(grid.dims[0] == images, "Grid", "{0} images, as X", numbers=(images,))
    pixels = e.reshape(x, (images, channels, height * width))
    rows, columns = grid.dims[1:3]
    across, down = (
        _sides(e.reshape(e.slice_axis(grid, 3, k, 1), (images, rows, columns)), size)
        for k, size in ((0, width), (1, height))
    )
    places, weights = [], []
    for row, in_y, there in down:
        for column, in_x, here in across:
            places.append(e.where(e.logical_and(there, here), row * width + column, -1))
            weights.append(in_x * in_y)
    count = rows * columns * len(places)
    at = e.broadcast(e.reshape(e.stack(places, 3), (images, 1, count)), (images, channels, count))
    found = e.reshape(e.pick(pixels, at, 2, "zero"), (images, channels, rows, columns, len(places)))
    return e.contract(found, e.stack(weights, 3), "ncijk,nijk->ncij")
