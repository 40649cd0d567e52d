"""Further losses of classifiers: bpr_loss, cross_entropy2, center_loss."""

from __future__ import annotations

import math

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.loss import check_label, classes, cost_of
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation

# bpr_loss ----------------------------------------------------------------------------------------------------------


def _score_differences(x: e.Tensor, label: e.Tensor) -> tuple[e.Tensor, e.Tensor]:
    """X minus the score of its label, with -infinity at the label itself; and the labels."""
    at = x.rank - 1
    index = e.checked(e.cast(e.reshape(label, (*x.dims[:at], 1)), "int64"), x.dims[at])
    is_label = e.iota((*(1,) * at, x.dims[at]), at) == index
    return e.where(is_label, -math.inf, x - e.pick(x, index, at)), index


@operator(
    "bpr_loss",
    inputs={"X": "scores, [..., classes], 2 classes or more", "Label": "the correct classes, [..., 1], integers"},
    outputs=("Y",),
    dtypes={"X": ALL_FLOATS, "Label": INTS},
    source="Fluid bpr_loss_op.cc",
    doc="Y = the mean of ln(1 + exp(X[j] - X[Label])) over the classes j that are not Label",
)
def bpr_loss(x: e.Tensor, label: e.Tensor) -> e.Tensor:
    """Sum the softplus of the differences, which is 0 at the label."""
    at, dims = check_label(x, label, soft=False)
    e.need(x.dims[at] >= 2, "X", "[..., classes], 2 classes or more")
    differences, _ = _score_differences(x, label)
    costs = e.maximum(differences, 0) + e.log1p(e.exp(-e.abs_(differences)))
    return e.reshape(e.reduce_sum(costs, at, keep=True) / (x.dims[at] - 1), dims)


@gradient(
    bpr_loss,
    doc="X@GRAD[j] = Y@GRAD / (1 + exp(X[Label] - X[j])) / (classes - 1); at Label less the sum of these",
)
def bpr_loss_grad(x: e.Tensor, label: e.Tensor, dy: e.Tensor) -> e.Tensor:
    """Hand-written: the derived gradient of softplus as a max and a log1p is wrong where two scores are equal."""
    at = x.rank - 1
    differences, index = _score_differences(x, label)
    slopes = e.reshape(dy, index.dims) / (x.dims[at] - 1) / (1 + e.exp(-differences))
    return e.put(-e.reduce_sum(slopes, at, keep=True), index, at, x.dims[at], slopes)


# cross_entropy2 ----------------------------------------------------------------------------------------------------


@operator(
    "cross_entropy2",
    outputs=(
        "Y",
        Slot("XShape", dispensable=True, intermediate=True, content="dims (*dims of X, 0) and X's LoD; no bytes"),
        Slot("MatchX", dispensable=True, intermediate=True, content="X[Label], 0 in ignored rows"),
    ),
    attrs=(Attr("ignore_index", "int", -100, doc="rows of this class cost 0"),),
    dtypes={"X": ALL_FLOATS, "Label": INTS},
    doc="Y = -ln(X[Label]), 0 in ignored rows; -ln(0) counts as 1e20",
    source="Fluid cross_entropy_op.cc",
)
def cross_entropy2(x: e.Tensor, label: e.Tensor, *, ignore_index: int) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """The cross entropy of probabilities; saves the probability of the label."""
    at, dims = check_label(x, label, soft=False, short=True)
    index, ignored = classes(label, x, at, ignore_index)
    match = e.pick(x, index, at)
    shape = e.full((*x.dims, 0), 0, e.wide(x).dtype)
    return e.reshape(e.where(ignored, 0, cost_of(match)), dims), shape, e.where(ignored, 0, match)


@gradient(
    cross_entropy2,
    type="cross_entropy_grad2",
    metadata=("XShape",),
    source="Fluid cross_entropy_op.cc",
    doc="X@GRAD = -Y@GRAD / MatchX at Label, 0 elsewhere and in ignored rows",
)
def cross_entropy_grad2(
    label: e.Tensor, match_x: e.Tensor, xshape: e.Tensor, dy: e.Tensor, *, ignore_index: int
) -> e.Tensor:
    """Hand-written: Fluid's gradient reads MatchX instead of X."""
    at, count = xshape.rank - 2, xshape.dims[-2]
    rows = (*xshape.dims[:at], e.number(1))
    index = e.cast(e.reshape(label, rows), "int64")
    ignored = index == ignore_index
    slope = -e.reshape(dy, rows) / e.where(ignored, 1, e.reshape(match_x, rows))
    return e.put(e.where(ignored, 0, slope), e.checked(e.where(ignored, 0, index), count), at, count)


# center_loss -------------------------------------------------------------------------------------------------------


@operator(
    "center_loss",
    Differentiation(
        stop_gradient={
            "CentersOut": "the centers move by a rule of their own",
            "CenterUpdateRate": "it only moves the centers",
        },
        no_gradient={"Centers": "0.5 reduce_sum(square(x - gather(centers, label))), if the centers are to be trained"},
    ),
    inputs=(
        Slot("X", doc="features, [rows, width]"),
        Slot("Label", doc="classes, [rows, 1], integers"),
        "Centers",
        Slot("CenterUpdateRate", doc="the rate, [1]"),
    ),
    outputs=("CentersOut", Slot("SampleCenterDiff", intermediate=True, content="X - Centers[Label]"), "Loss"),
    attrs=(
        Attr("cluster_num", "int", minimum=1, doc="how many classes, and so rows of Centers"),
        Attr("need_update", "bool", doc="move the centers"),
    ),
    dtypes={"X": ALL_FLOATS, "Label": INTS, "Centers": ALL_FLOATS, "CenterUpdateRate": ALL_FLOATS},
    doc="D = X - Centers[Label]; Loss = the sum of each row's D^2 / 2; CentersOut = Centers + rate times the sum of a "
    "class's D / (1 + its rows)",
    source="Fluid center_loss_op.cc",
)
def center_loss(
    x: e.Tensor,
    label: e.Tensor,
    centers: e.Tensor,
    center_update_rate: e.Tensor,
    *,
    cluster_num: int,
    need_update: bool,
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Half the squared distance of each row from the center of its class."""
    if x.rank != 2:
        e.fail("X", "[rows, width]")
    for operand in (centers, center_update_rate):
        e.same_dtype(operand, x)
    rows, width = x.dims
    if not e.all_agree(centers.dims, (e.number(cluster_num), width)):
        shape = e.describe_dims((e.number(cluster_num), width))
        e.fail("Centers", f"{shape}, cluster_num rows as wide as X")
    if not any(e.all_agree(label.dims, dims) for dims in ((rows,), (rows, e.number(1)))):
        e.fail("Label", f"{e.describe_dims((rows, e.number(1)))}, a class for each row of X")
    if not e.all_agree(center_update_rate.dims, (e.number(1),)):
        e.fail("CenterUpdateRate", "[1]")
    index = e.checked(e.reshape(label, (rows,)), centers.dims[0])
    diff = x - e.take(centers, index)
    loss = e.reduce_sum(diff * diff, 1, keep=True) * 0.5
    if not need_update:
        return centers, diff, loss
    sums, ones = e.add_at(diff, index, 0, centers.dims[0]), e.full((rows, 1), 1, diff.dtype)
    count = 1 + e.add_at(ones, index, 0, centers.dims[0])
    return centers + center_update_rate * (sums / count), diff, loss


@gradient(center_loss, doc="X@GRAD = SampleCenterDiff Loss@GRAD")
def center_loss_grad(sample_center_diff: e.Tensor, dloss: e.Tensor) -> e.Tensor:
    """Hand-written: Fluid's gradient reads only SampleCenterDiff."""
    return sample_center_diff * e.reshape(dloss, (sample_center_diff.dims[0], 1))
