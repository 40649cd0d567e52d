"""dist: the p-norm of a difference."""

from __future__ import annotations

from math import inf

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Execution

_P = (Attr("p", "float", 2.0, doc="which norm; 0 counts what differs, inf and -inf give the greatest and least"),)
_LEAST = {"float16": 1e-7}
"""What Out counts as at least: numbers that are equal have no direction."""


@operator(
    "dist",
    Execution(memory="X - Y, and what becomes of each element before the sum: up to twice as much as X"),
    attrs=_P,
    dtypes={"X": ALL_FLOATS, "Y": ALL_FLOATS},
    source="Fluid dist_op.cc",
    doc="Out = (the sum of |X - Y| ^ p) ^ (1 / p), as [1]",
)
def dist(x: e.Tensor, y: e.Tensor, *, p: e.Number) -> e.Tensor:
    """By cases of p, of which 2 is the usual one."""
    e.same_dtype(y, x)
    for each in (x, y):
        if not each.rank:
            e.fail(e.slot(each), "rank 1 or more")
        for d in each.dims:
            e.need(d != 0, e.slot(each), "1 element or more")
    for a, b in zip(reversed(x.dims), reversed(y.dims), strict=False):
        if not (a == 1 or b == 1 or e.same_dims([a], [b])):
            e.fail("Y", f"dims that broadcast with those of X, {e.shown_dims(x.dims)}, from the last one on")
    apart = x - y
    if p == 2:
        out = e.sqrt(e.reduce_sum(apart * apart))
    elif p == inf:
        out = e.reduce_max(e.abs_(apart))
    elif p == -inf:
        out = e.reduce_min(e.abs_(apart))
    elif p == 0:
        out = e.reduce_sum(e.sign(e.abs_(apart)))
    elif p == 1:
        out = e.reduce_sum(e.abs_(apart))
    else:
        out = e.pow_(e.reduce_sum(e.pow_(e.abs_(apart), p)), 1 / p)
    return e.reshape(out, (1,))


@gradient(
    dist,
    writes=("X", "Y"),
    doc="X@GRAD = Out@GRAD sign(X - Y) (|X - Y| / Out) ^ (p - 1), and Y@GRAD its negative, summed where broadcast; "
    "takes temporary memory of several times X - Y",
)
def dist_grad(x: e.Tensor, y: e.Tensor, out: e.Tensor, dout: e.Tensor, *, p: e.Number) -> tuple[e.Tensor, e.Tensor]:
    """Written: the derived one would be 0 / 0 of numbers that are equal, which have no direction: here it is 0."""
    apart = x - y
    size, way = e.abs_(apart), e.sign(apart)
    least = e.maximum(out, _LEAST.get(x.dtype, 1e-30))
    if p == 2:  # this is both the direction and the power
        part = apart / least
    elif p == 0:
        part = e.full(apart.dims, 0, apart.dtype)
    elif p == 1:
        part = way
    elif p == inf or p == -inf:  # every element that is as far away as Out
        part = e.where(e.cast(size, out.dtype) == out, way, 0)
    else:
        some = size > 0
        part = e.where(some, way * e.pow_(e.where(some, size, 1) / least, p - 1), 0)
    part = part * dout
    return e.sum_to(part, x.dims), -e.sum_to(part, y.dims)
