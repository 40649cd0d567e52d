"""label_smooth: labels mixed with a prior distribution."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Differentiation


@operator(
    "label_smooth",
    Differentiation(no_gradient={"PriorDist": "(1 - epsilon) x + epsilon prior, with operators of layers"}),
    Aliasing(may={"Out": "X"}),
    inputs=(
        Slot("X", doc="probabilities or one-hot classes, [..., classes]. It gets no gradient"),
        Slot("PriorDist", dispensable=True, doc="a probability for each class; default: 1 / classes"),
    ),
    attrs=(Attr("epsilon", "float", 0.0, doc="the weight of the prior"),),
    dtypes={"X": ALL_FLOATS, "PriorDist": ALL_FLOATS},
    doc="Out = (1 - epsilon) X + epsilon PriorDist, or + epsilon / classes",
    source="Fluid label_smooth_op.cc",
)
def label_smooth(x: e.Tensor, prior_dist: e.Tensor | None, *, epsilon: e.Number) -> e.Tensor:
    """The prior is flattened to one row."""
    if not x.rank:
        e.fail("X", "[..., classes], rank 1 or more")
    classes = x.dims[-1]
    if prior_dist is None:
        return (1 - epsilon) * x + epsilon / e.highest(classes, 1)
    e.same_dtype(prior_dist, x)
    e.need(e.product(prior_dist.dims) == classes, "PriorDist", "{0} numbers, one a class", numbers=(classes,))
    return (1 - epsilon) * x + epsilon * e.reshape(prior_dist, (classes,))


@gradient(label_smooth, Aliasing(may={"X@GRAD": "Out@GRAD"}), doc="X@GRAD = (1 - epsilon) Out@GRAD")
def label_smooth_grad(dout: e.Tensor, *, epsilon: e.Number) -> e.Tensor:
    """Hand-written: as in Fluid it reads only Out@GRAD, and no dims of X."""
    return (1 - epsilon) * dout
