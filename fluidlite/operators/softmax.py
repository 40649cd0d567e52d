"""softmax and log_softmax over one axis."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr

_ATTRS = (Attr("axis", "int", -1, doc="the axis whose elements sum to 1; negative ones count from the end"),)
MIN_SHIFTED_LOGIT = -64.0
"""Fluid's lower bound of X - max(X) in softmax, so that no probability is 0 and each has a logarithm."""


def axis_of(x: e.Tensor, axis: int) -> int:
    """The axis as 0 to rank - 1; refuse rank 0."""
    if not x.rank:
        e.fail(e.slot(x), "rank 1 or more")
    return e.axis("axis", axis, x)


@operator(
    "softmax",
    attrs=_ATTRS,
    dtypes={"X": ALL_FLOATS},
    source="Fluid softmax_op.cc",
    doc="Out = exp(D) / sum(exp(D)) over the axis, D = max(X - the maximum of X, -64): no probability is 0, so that "
    "cross_entropy of it, and its gradient, are finite",
)
def softmax(x: e.Tensor, *, axis: int) -> e.Tensor:
    """Subtract the maximum, so that nothing overflows."""
    at = axis_of(x, axis)
    powers = e.exp(e.maximum(x - e.reduce_max(x, at, keep=True, empty=True), MIN_SHIFTED_LOGIT))
    return powers / e.reduce_sum(powers, at, keep=True)


@gradient(
    softmax,
    doc="X@GRAD = Out (Out@GRAD - sum(Out Out@GRAD) over the axis), also where X was below the maximum by 64 or more",
)
def softmax_grad(out: e.Tensor, dout: e.Tensor, *, axis: int) -> e.Tensor:
    """Hand-written: the derived gradient is 0 where X is clipped, and reads X."""
    at = axis_of(out, axis)
    return out * (dout - e.reduce_sum(out * dout, at, keep=True))


@operator(
    "log_softmax",
    attrs=_ATTRS,
    dtypes={"X": ALL_FLOATS},
    source="Fluid log_softmax_op.cc",
    doc="Out = D - log(sum(exp(D))) over the axis, D = X - the maximum of X; Fluid 1.8 takes no D below -64 here, too, "
    "though nothing of it is infinite",
)
def log_softmax(x: e.Tensor, *, axis: int) -> e.Tensor:
    """Subtract the maximum, so that nothing overflows."""
    at = axis_of(x, axis)
    shifted = x - e.reduce_max(x, at, keep=True, empty=True)
    return shifted - e.log(e.reduce_sum(e.exp(shifted), at, keep=True))


@gradient(log_softmax, doc="X@GRAD = Out@GRAD - exp(Out) (sum(Out@GRAD) over the axis)")
def log_softmax_grad(out: e.Tensor, dout: e.Tensor, *, axis: int) -> e.Tensor:
    """Hand-written: the derived gradient reads X."""
    return dout - e.exp(out) * e.reduce_sum(dout, axis_of(out, axis), keep=True)
