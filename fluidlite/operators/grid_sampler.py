"""grid_sampler: sample an image at given positions by bilinear interpolation."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.declare import operator
from fluidlite.program.operator_options import Differentiation

Neighbour = tuple[e.Tensor, e.Tensor, e.Tensor]
"""Index of a row or column next to each position, its weight, and whether it is inside (else the others are 0)."""


def _neighbours(coordinates: e.Tensor, size: e.Number) -> list[Neighbour]:
    position = (coordinates + 1.0) * (0.5 * (size - 1))
    low = e.floor(position)
    fraction = position - low
    neighbours = []
    for index, weight in ((low, 1.0 - fraction), (low + 1.0, fraction)):
        inside = e.logical_and(index >= 0, index <= size - 1)
        neighbours.append((e.cast(e.where(inside, index, 0), "int64"), e.where(inside, weight, 0), inside))
    return neighbours


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
    """Gather the four neighbours from the flattened pixels of each channel; outside the image their weight is 0."""
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
        _neighbours(e.reshape(e.slice_axis(grid, 3, k, 1), (images, rows, columns)), size)
        for k, size in ((0, width), (1, height))
    )
    indices, weights = [], []
    for row, weight_y, row_inside in down:
        for column, weight_x, column_inside in across:
            indices.append(e.where(e.logical_and(row_inside, column_inside), row * width + column, -1))
            weights.append(weight_x * weight_y)
    count = rows * columns * len(indices)
    at = e.broadcast(e.reshape(e.stack(indices, 3), (images, 1, count)), (images, channels, count))
    corners = e.reshape(e.pick(pixels, at, 2, "zero"), (images, channels, rows, columns, len(indices)))
    return e.contract(corners, e.stack(weights, 3), "ncijk,nijk->ncij")
