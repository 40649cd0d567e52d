"""affine_grid: the sampling positions of an output image in an input image, by an affine map."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr, as_tensor

_MAX_IMAGE_SIZE = 2**16
"""Maximum height and width of an image."""


def _coordinates(size: e.Number, like: e.Tensor) -> e.Tensor:
    """Evenly spaced coordinates of rows or columns from -1 to 1; a single one is -1."""
    steps = e.highest(size - 1, 1)
    halves = e.iota((size,), 0) * 2 - steps  # integers, so that coordinates are rounded only once
    return e.cast(halves, "float64" if like.dtype == "float64" else "float32") / steps


@operator(
    "affine_grid",
    inputs={"Theta": "a map for each image, [images, 2, 3], floating"},
    outputs=("Output",),
    attrs=(
        Attr(
            "output_shape",
            "ints",
            (),
            doc="[images, channels, height, width] of the output image",
            tensors=(as_tensor("OutputShape"),),
        ),
    ),
    dtypes={"Theta": ALL_FLOATS},
    doc="Output[n, i, j] = Theta[n] . (x, y, 1), x and y the coordinates of column j and row i from -1 to 1",
    source="Fluid affine_grid_op.cc",
)
def affine_grid(theta: e.Tensor, *, output_shape: Sequence[e.Numeric]) -> e.Tensor:
    """Compute the terms of columns and of rows separately, then add them."""
    expected = "[images, 2, 3]: a map for each image"
    if theta.rank != 3:
        e.fail("Theta", expected)
    e.need(theta.dims[1] == 2, "Theta", expected)
    e.need(theta.dims[2] == 3, "Theta", expected)
    if len(output_shape) != 4:
        e.fail_attr("output_shape", "4 numbers: images, channels, height, width")
    images, _, height, width = map(e.number, output_shape)
    for d in (height, width):
        for condition in (d >= 1, d <= _MAX_IMAGE_SIZE):
            e.need_attr(condition, "output_shape", f"a height and a width of 1 to {_MAX_IMAGE_SIZE}")
    is_stated = e.highest(images + 1, 0)  # 0 if the number of images is unknown (negative)
    e.need(
        (theta.dims[0] - images) * is_stated == 0,
        "Theta",
        "{0} maps, one for each image of the shape",
        numbers=(images,),
    )
    by_x, by_y, shift = (e.slice_axis(theta, 2, k, 1) for k in range(3))
    columns = e.transpose(by_x * _coordinates(width, theta) + shift, (0, 2, 1))
    rows = e.transpose(by_y * _coordinates(height, theta), (0, 2, 1))
    return e.unsqueeze(columns, 1) + e.unsqueeze(rows, 2)


@gradient(affine_grid, writes=("Theta",), doc="Theta@GRAD[n] = the sum over pixels of Output@GRAD (x, y, 1)")
def affine_grid_grad(doutput: e.Tensor) -> e.Tensor:
    """Hand-written: the derived gradient reads the dims of Theta; Fluid's has no Theta. Columns are summed first."""
    x, y = (e.reshape(_coordinates(doutput.dims[k], doutput), (doutput.dims[k], 1)) for k in (2, 1))
    columns, by_y = e.reduce_sum(doutput, 1), e.reduce_sum(doutput * e.unsqueeze(y, 1), 1)
    return e.reduce_sum(e.stack([columns * x, by_y, columns], 3), 1)
