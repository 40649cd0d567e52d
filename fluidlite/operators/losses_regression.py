"""Regression losses: huber_loss, smooth_l1_loss; and kldiv_loss between distributions."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr import abs_, maximum, minimum
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.scalar_op import Elementwise, scalar_op
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation

# huber_loss --------------------------------------------------------------------------------------------------------


def _huber(x: Any, y: Any, *, delta: float) -> Any:
    residual = y - x
    clipped = minimum(abs_(residual), delta)
    return residual, clipped * (abs_(residual) - 0.5 * clipped)


def _huber_grad(residual: Any, dout: Any, *, delta: float) -> Any:
    slope = maximum(minimum(residual, delta), -delta) * dout
    return -slope, slope


scalar_op(
    "huber_loss",
    _huber,
    Elementwise(
        outputs=("Residual", "Out"),
        slots=[Slot("Residual", intermediate=True, content="Y - X")],
        differentiable=("X", "Y"),
    ),
    attrs=(Attr("delta", "float", minimum=0, doc="from which distance on the loss is linear"),),
    grad=_huber_grad,
    dtypes=ALL_FLOATS,
    doc="r = |Y - X|; Out = r^2 / 2 if r <= delta, else delta (r - delta / 2)",
    source="Fluid huber_loss_op.cc",
)

# smooth_l1_loss ----------------------------------------------------------------------------------------------------

_SIGMA = (Attr("sigma", "float", 1.0, doc="its square is the curvature near 0; from 1 / sigma^2 on it is linear"),)
_WEIGHTS = ("InsideWeight", "OutsideWeight")
_WEIGHT = "as X; the differences are multiplied by the first, the distances by the second. Both or none"


@operator(
    "smooth_l1_loss",
    Differentiation(
        no_gradient={
            "InsideWeight": "layers.smooth_l1(inside_weight x, inside_weight y), whose products have gradients",
            "OutsideWeight": "outside_weight layers.smooth_l1(x, y), of one column at a time",
        }
    ),
    attrs=_SIGMA,
    inputs=(
        *(Slot(slot, doc="[rows, ...], of equal dims and dtype") for slot in "XY"),
        *(Slot(slot, dispensable=True, doc=_WEIGHT) for slot in _WEIGHTS),
    ),
    outputs=(Slot("Diff", intermediate=True, content="InsideWeight (X - Y)"), "Out"),
    dtypes=dict.fromkeys(("X", "Y", *_WEIGHTS), ALL_FLOATS),
    source="Fluid smooth_l1_loss_op.cc",
    doc="d = InsideWeight (X - Y); Out = the sum of each row's OutsideWeight l, where l = (sigma d)^2 / 2 if "
    "|d| < 1 / sigma^2, else |d| - 0.5 / sigma^2",
)
def smooth_l1_loss(
    x: e.Tensor, y: e.Tensor, inside_weight: e.Tensor | None, outside_weight: e.Tensor | None, *, sigma: e.Number
) -> tuple[e.Tensor, e.Tensor]:
    """The minimum of the distance and 1 / sigma^2 gives both branches in one product."""
    if x.rank < 2:
        e.fail("X", "[rows, ...], rank 2 or more")
    weights = dict(zip(_WEIGHTS, (inside_weight, outside_weight), strict=True))
    for slot, operand in {"Y": y, **weights}.items():
        if operand is not None:
            e.same_dtype(operand, x)
            if not e.same_dims(operand.dims, x.dims):
                e.fail(slot, f"{e.describe_dims(x.dims)}, the dims of X")
    for slot, other in (_WEIGHTS, _WEIGHTS[::-1]):
        if weights[slot] is None and weights[other] is not None:
            e.fail(slot, f"a tensor as {other} is: there are both or none")
    diff = x - y if inside_weight is None else (x - y) * inside_weight
    size = e.abs_(diff)
    clipped = e.minimum(size, 1 / (sigma * sigma))
    loss = clipped * (size - 0.5 * clipped)
    if outside_weight is not None:
        loss = loss * outside_weight
    total = e.reduce_sum(loss, range(1, x.rank)) * (sigma * sigma)
    return diff, e.reshape(total, (x.dims[0], 1))


@gradient(
    smooth_l1_loss,
    writes=("X", "Y"),
    doc="X@GRAD = InsideWeight OutsideWeight min(max(sigma^2 Diff, -1), 1) Out@GRAD of the row; Y@GRAD = -X@GRAD",
)
def smooth_l1_loss_grad(
    inside_weight: e.Tensor | None, outside_weight: e.Tensor | None, diff: e.Tensor, dout: e.Tensor, *, sigma: e.Number
) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: Fluid's gradient reads Diff instead of X and Y."""
    slope = e.maximum(e.minimum(sigma * sigma * diff, 1), -1)
    part = slope * e.reshape(dout, (diff.dims[0], *(1,) * (diff.rank - 1)))
    for weight in (inside_weight, outside_weight):
        if weight is not None:
            part = part * weight
    return part, -part


# kldiv_loss --------------------------------------------------------------------------------------------------------

_REDUCTION = (
    Attr("reduction", "str", "mean", choices=("none", "batchmean", "mean", "sum"), doc="batchmean: the sum / rows"),
)


def _divisor(x: e.Tensor, reduction: str) -> e.Number | int:
    """The divisor of the reduction; 1 for an empty tensor."""
    if reduction == "mean":
        return e.highest(e.count(x), 1)
    return e.highest(x.dims[0], 1) if reduction == "batchmean" else 1


@operator(
    "kldiv_loss",
    inputs={"X": "logarithms of probabilities, [rows, ...]", "Target": "probabilities, as X"},
    attrs=_REDUCTION,
    outputs=("Loss",),
    dtypes={"X": ALL_FLOATS, "Target": ALL_FLOATS},
    doc="Loss = Target (ln(Target) - X), 0 where Target is not above 0; its mean, sum or sum / rows, 0 of nothing",
    source="Fluid kldiv_loss_op.cc",
)
def kldiv_loss(x: e.Tensor, target: e.Tensor, *, reduction: str) -> e.Tensor:
    """Where Target is 0 the loss is 0, whatever X is."""
    e.same_dtype(target, x)
    if not x.rank:
        e.fail("X", "[rows, ...], rank 1 or more")
    if not e.same_dims(target.dims, x.dims):
        e.fail("Target", f"{e.describe_dims(x.dims)}, the dims of X")
    is_positive = target > 0
    loss = e.where(is_positive, target * (e.log(e.where(is_positive, target, 1)) - x), 0)
    return loss if reduction == "none" else e.reshape(e.reduce_sum(loss) / _divisor(x, reduction), (1,))


@gradient(
    kldiv_loss,
    writes=("X", "Target"),
    doc="X@GRAD = -max(Target, 0) Loss@GRAD, divided as the reduction divides; Target@GRAD = (ln(Target) + 1 - X) "
    "Loss@GRAD, divided likewise, 0 where Target is not above 0",
)
def kldiv_loss_grad(x: e.Tensor, target: e.Tensor, dloss: e.Tensor, *, reduction: str) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient is 0 times infinity where Target is 0 and X is its logarithm."""
    e.need_dims(dloss, x.dims if reduction == "none" else (e.number(1),), "Loss@GRAD", "Loss")
    is_positive, scale = target > 0, dloss / -_divisor(x, reduction)
    target_slope = e.where(is_positive, x - 1 - e.log(e.where(is_positive, target, 1)), 0)
    return e.maximum(target, 0) * scale, target_slope * scale
