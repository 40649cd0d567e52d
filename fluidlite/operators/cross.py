"""cross: the cross product of vectors of three components."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr

_ANY_DIM = 9
"""Fluid's default of dim: the first dim of size 3."""
_CROSS = (Attr("dim", "int", _ANY_DIM, doc="the axis of the vectors' three components; 9: the first dim of size 3"),)


def _axis(x: e.Tensor, dim: int) -> int:
    """The axis of the components; an axis of unknown size is taken only if no axis is known to have size 3."""
    if dim != _ANY_DIM:
        axis = e.axis("dim", dim, x)
        if not e.same_dims([x.dims[axis]], [3]):
            e.fail(e.slot(x), f"3 elements along dim {axis}")
        return axis
    candidates = [axis for axis, d in enumerate(x.dims) if d == 3]
    candidates = candidates or [
        axis for axis, d in enumerate(x.dims) if e.static_value(d) is None and e.same_dims([d], [3])
    ]
    if not candidates:
        e.fail(e.slot(x), "a dim of size 3")
    return candidates[0]


def _product(x: e.Tensor, y: e.Tensor, axis: int) -> e.Tensor:
    (a, b, c), (f, g, h) = ([e.slice_axis(operand, axis, i, 1) for i in range(3)] for operand in (x, y))
    return e.reshape(e.concat([b * h - c * g, c * f - a * h, a * g - b * f], axis), x.dims)


@operator(
    "cross",
    attrs=_CROSS,
    dtypes={slot: (*ALL_FLOATS, *INTS) for slot in "XY"},
    source="Fluid cross_op.cc",
    doc="Out = the cross product of the vectors of X and Y along dim",
)
def cross(x: e.Tensor, y: e.Tensor, *, dim: int) -> e.Tensor:
    """Concatenate the three components."""
    e.same_dtype(y, x)
    if not e.same_dims(y.dims, x.dims):
        e.fail("Y", f"the dims of X, {e.describe_dims(x.dims)}")
    return _product(x, y, _axis(x, dim))


@gradient(
    cross,
    writes=("X", "Y"),
    doc="X@GRAD = the cross product of Y and Out@GRAD, Y@GRAD = that of Out@GRAD and X",
)
def cross_grad(x: e.Tensor, y: e.Tensor, dout: e.Tensor, *, dim: int) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient adds padded slices; two cross products do."""
    dim = _axis(x, dim)
    dx, dy = (e.call("cross", {"X": a, "Y": b}, {"dim": dim})["Out"] for a, b in ((y, dout), (dout, x)))
    return dx, dy
