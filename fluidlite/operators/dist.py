"""dist: the p-norm of a difference."""

from __future__ import annotations

from math import inf

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Execution

_P = (
    Attr("p", "float", 2.0, doc="which norm; 0 counts differing elements, inf and -inf give the maximum and minimum"),
)
_MIN_DISTANCE = {"float16": 1e-7}
"""Lower bound of Out in the gradient's divisor, by dtype: it avoids 0 / 0 where X equals Y."""


@operator(
    "dist",
    Execution(memory="X - Y and its powers before the sum: up to twice as much as X"),
    attrs=_P,
    dtypes={"X": ALL_FLOATS, "Y": ALL_FLOATS},
    source="Fluid dist_op.cc",
    doc="Out = (the sum of |X - Y| ^ p) ^ (1 / p), as [1]",
)
def dist(x: e.Tensor, y: e.Tensor, *, p: e.Number) -> e.Tensor:
    """Each common p has a formula of its own."""
    e.same_dtype(y, x)
    for operand in (x, y):
        if not operand.rank:
            e.fail(e.slot(operand), "rank 1 or more")
        for d in operand.dims:
            e.need(d != 0, e.slot(operand), "1 element or more")
    for a, b in zip(reversed(x.dims), reversed(y.dims), strict=False):
        if not (a == 1 or b == 1 or e.same_dims([a], [b])):
            e.fail("Y", f"dims that broadcast with those of X, {e.describe_dims(x.dims)}, from the last one on")
    difference = x - y
    if p == 2:
        out = e.sqrt(e.reduce_sum(difference * difference))
    elif p == inf:
        out = e.reduce_max(e.abs_(difference))
    elif p == -inf:
        out = e.reduce_min(e.abs_(difference))
    elif p == 0:
        out = e.reduce_sum(e.sign(e.abs_(difference)))
    elif p == 1:
        out = e.reduce_sum(e.abs_(difference))
    else:
        out = e.pow_(e.reduce_sum(e.pow_(e.abs_(difference), p)), 1 / p)
    return e.reshape(out, (1,))


@gradient(
    dist,
    writes=("X", "Y"),
    doc="X@GRAD = Out@GRAD sign(X - Y) (|X - Y| / Out) ^ (p - 1), and Y@GRAD its negative, summed where broadcast; "
    "takes temporary memory of several times X - Y",
)
def dist_grad(x: e.Tensor, y: e.Tensor, out: e.Tensor, dout: e.Tensor, *, p: e.Number) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient is 0 / 0 where X equals Y; here it is 0."""
    difference = x - y
    size, direction = e.abs_(difference), e.sign(difference)
    distance = e.maximum(out, _MIN_DISTANCE.get(x.dtype, 1e-30))
    if p == 2:  # the quotient is both the sign and the power
        part = difference / distance
    elif p == 0:
        part = e.full(difference.dims, 0, difference.dtype)
    elif p == 1:
        part = direction
    elif p == inf or p == -inf:  # all elements whose difference has the magnitude of Out
        part = e.where(e.cast(size, out.dtype) == out, direction, 0)
    else:
        differs = size > 0
        part = e.where(differs, direction * e.pow_(e.where(differs, size, 1) / distance, p - 1), 0)
    part = part * dout
    return e.sum_to(part, x.dims), -e.sum_to(part, y.dims)
