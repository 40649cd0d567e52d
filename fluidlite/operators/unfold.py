"""unfold (im2col): the windows of an image as columns, so that a convolution is a matrix product."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation

_ATTRS = (
    Attr("kernel_sizes", "ints", doc="height and width of a window"),
    Attr("strides", "ints", doc="distance between two windows"),
    Attr("paddings", "ints", doc="padding above, left, below and right"),
    Attr("dilations", "ints", doc="distance between two elements of a window"),
)
Ints = tuple[int, ...]


@operator(
    "unfold",
    Differentiation(
        reads=(),
        doc="X@GRAD = the sum of Y@GRAD over the windows that hold an element; half types add up in a float32 copy",
        memory="in loops, the sums over the columns of the windows: as much as X for each row of a window",
    ),
    inputs={"X": "images, [images, channels, height, width], floating"},
    outputs=("Y",),
    attrs=_ATTRS,
    dtypes={"X": ALL_FLOATS},
    source="Fluid unfold_op.cc",
    doc="Y[n, (c, i, j), (h, w)] = X[n, c, h strides + i dilations - paddings], 0 in the padding",
)
def unfold(x: e.Tensor, *, kernel_sizes: Ints, strides: Ints, paddings: Ints, dilations: Ints) -> e.Tensor:
    """Take windows of the height, then of the width."""
    if x.rank != 4:
        e.fail("X", "[images, channels, height, width]")
    sizes, steps = e.per_dim("kernel_sizes", kernel_sizes, 2), e.per_dim("strides", strides, 2)
    dilation_steps = e.per_dim("dilations", dilations, 2)
    if len(paddings) != 4 or min(paddings) < 0:
        e.fail_attr("paddings", "4 numbers of 0 or more: above, left, below, right")
    padded = e.pad(x, (0, 0, *paddings[:2]), (0, 0, *paddings[2:]))
    for at, taps, step, dilation in zip((2, 4), sizes, steps, dilation_steps, strict=True):
        fits = e.window_reach(taps, dilation) <= padded.dims[at]
        e.need_attr(fits, "kernel_sizes", "a window that fits in X, {X}, with its paddings")
        padded = e.window(padded, at, taps, step, dilation)
    images, channels, window_rows, height, window_columns, width = padded.dims
    parts = e.transpose(padded, (0, 1, 3, 5, 2, 4))
    return e.reshape(parts, (images, channels * height * width, window_rows * window_columns))
