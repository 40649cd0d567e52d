"""affine_grid: where the pixels of an image lie in another, by an affine map."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr, as_tensor

_MOST = 2**16
"""Rows and columns of an image, at most."""


def _places(size: e.Number, like: e.Tensor) -> e.Tensor:
    """The places of rows or columns between -1 and 1; of one alone, -1."""
    steps = e.highest(size - 1, 1)
    halves = e.iota((size,), 0) * 2 - steps  # whole, so that the places are rounded once
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
            doc="[images, channels, height, width] of the image to come",
            tensors=(as_tensor("OutputShape"),),
        ),
    ),
    dtypes={"Theta": ALL_FLOATS},
    doc="Output[n, i, j] = Theta[n] . (x, y, 1), x and y the places of column j and row i between -1 and 1",
    source="Fluid affine_grid_op.cc",
)
def affine_grid(theta: e.Tensor, *, output_shape: Sequence[e.Numeric]) -> e.Tensor:
    """The parts of columns and of rows are made alone, and added."""
    expected = "[images, 2, 3]: a map for each image"
    if theta.rank != 3:
        e.fail("Theta", expected)
    e.need(theta.dims[1] == 2, "Theta", expected)
    e.need(theta.dims[2] == 3, "Theta", expected)
    if len(output_shape) != 4:
        e.fail_attr("output_shape", "4 numbers: images, channels, height, width")
    images, _, height, width = map(e.number, output_shape)
    for d in (height, width):
        for holds in (d >= 1, d <= _MOST):
            e.need_attr(holds, "output_shape", f"a height and a width of 1 to {_MOST}")
    said = e.highest(images + 1, 0)  # 0: a negative number says nothing
    e.need(
        (theta.dims[0] - images) * said == 0, "Theta", "{0} maps, one for each image of the shape", numbers=(images,)
    )
    by_x, by_y, shift = (e.slice_axis(theta, 2, k, 1) for k in range(3))
    along = e.transpose(by_x * _places(width, theta) + shift, (0, 2, 1))
    down = e.transpose(by_y * _places(height, theta), (0, 2, 1))
    return e.unsqueeze(along, 1) + e.unsqueeze(down, 2)


@gradient(affine_grid, writes=("Theta",), doc="Theta@GRAD[n] = the sum over pixels of Output@GRAD (x, y, 1)")
def affine_grid_grad(doutput: e.Tensor) -> e.Tensor:
    """Written: the derived one would read the dims of Theta, which Fluid's does not have. Columns are summed first."""
    x, y = (e.reshape(_places(doutput.dims[k], doutput), (doutput.dims[k], 1)) for k in (2, 1))
    columns, by_y = e.reduce_sum(doutput, 1), e.reduce_sum(doutput * e.unsqueeze(y, 1), 1)
    return e.reduce_sum(e.stack([columns * x, by_y, columns], 3), 1)
