"""Norms of a tensor and distances of rows: l1_norm, squared_l2_norm, clip_by_norm, squared_l2_distance."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Differentiation

# One number of a tensor --------------------------------------------------------------------------------------------


@operator(
    "l1_norm",
    Differentiation(reads=("X",), doc="X@GRAD = Out@GRAD sign(X)"),
    dtypes={"X": ALL_FLOATS},
    source="Fluid l1_norm_op.cc",
    doc="Out = the sum of |X|, as [1]",
)
def l1_norm(x: e.Tensor) -> e.Tensor:
    """The sum of absolute values."""
    return e.reshape(e.reduce_sum(e.abs_(x)), (1,))


@operator(
    "squared_l2_norm",
    Differentiation(reads=("X",), doc="X@GRAD = 2 Out@GRAD X"),
    dtypes={"X": ALL_FLOATS},
    source="Fluid squared_l2_norm_op.cc",
    doc="Out = the sum of X X, as [1]",
)
def squared_l2_norm(x: e.Tensor) -> e.Tensor:
    """The sum of squares."""
    return e.reshape(e.reduce_sum(x * x), (1,))


# clip_by_norm ------------------------------------------------------------------------------------------------------


@operator(
    "clip_by_norm",
    Differentiation(
        no_gradient={"X": "x min(1, max_norm / sqrt(reduce_sum(square(x)))), written with operators of layers"}
    ),
    Aliasing(may={"Out": "X"}),
    attrs=(Attr("max_norm", "float", minimum=0.0, doc="the largest norm that stays as it is"),),
    dtypes={"X": ALL_FLOATS},
    source="Fluid clip_by_norm_op.h",
    doc="Out = X if its L2 norm is at most max_norm, else max_norm X / norm(X); no gradient, as in Fluid",
)
def clip_by_norm(x: e.Tensor, *, max_norm: e.Number) -> e.Tensor:
    """Scale X down to the norm; a norm of NaN makes Out NaN."""
    norm = e.sqrt(e.reduce_sum(x * x))
    return x * e.where(norm <= max_norm, 1, max_norm / norm)


# squared_l2_distance -----------------------------------------------------------------------------------------------


def _matrix(x: e.Tensor) -> e.Tensor:
    """Flatten the axes after the first to rows."""
    return e.reshape(x, (x.dims[0], e.product(x.dims[1:])))


@operator(
    "squared_l2_distance",
    dtypes={"X": ALL_FLOATS, "Y": ALL_FLOATS},
    outputs=(Slot("sub_result", intermediate=True, content="X - Y, as [rows, width]"), "Out"),
    doc="Out = the sum of (X - Y)^2 over each row, as [rows, 1]; one row of Y serves all of X",
    source="Fluid squared_l2_distance_op.cc",
)
def squared_l2_distance(x: e.Tensor, y: e.Tensor) -> tuple[e.Tensor, e.Tensor]:
    """Sum squared differences; sub_result is saved for the gradient."""
    e.same_dtype(y, x)
    if x.rank < 2:
        e.fail("X", "[rows, width], or more dims")
    if y.rank != x.rank:
        e.fail("Y", f"rank {x.rank}, that of X")
    rows, other = _matrix(x), _matrix(y)
    if not e.same_dims(rows.dims[1:], other.dims[1:]):
        (width,) = e.describe_dims(rows.dims[1:])
        e.fail("Y", f"rows of {width} elements, as X has ({e.describe(x)})")
    if not (y.dims[0] == 1 or e.same_dims(x.dims[:1], y.dims[:1])):
        e.fail("Y", f"one row, or as many as X ({e.describe_dims(x.dims)[0]})")
    difference = rows - other
    return difference, e.reduce_sum(difference * difference, 1, keep=True)


@gradient(
    squared_l2_distance,
    writes=("X", "Y"),
    metadata=("X", "Y"),
    doc="X@GRAD = 2 sub_result Out@GRAD, and Y@GRAD its negative, summed where one row serves all",
)
def squared_l2_distance_grad(
    x: e.Tensor, y: e.Tensor, sub_result: e.Tensor, dout: e.Tensor
) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient also reads sub_result@GRAD, which Fluid's does not."""
    rows = _matrix(x)
    e.need_dims(sub_result, rows.dims, "sub_result", "X as rows")
    e.need_dims(dout, (x.dims[0], e.number(1)), "Out@GRAD", "Out")
    part = 2 * dout * sub_result
    other = e.sum_to(part, (y.dims[0], part.dims[1]))
    return e.reshape(part, x.dims), -e.reshape(other, y.dims)
