"""mvn: normalise along an axis to mean 0 and variance 1; the gradient reads Out."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.layer_norm import normalised
from fluidlite.operators.softmax import axis_of
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Lowering
from fluidlite.program.rules import AS_COMPUTED


@operator(
    "mvn",
    Lowering(stored={"Inverse": AS_COMPUTED}),
    outputs=(
        "Out",
        Slot("Inverse", intermediate=True, content="1 / sqrt(variance + epsilon), with a dim of 1 for the axis"),
    ),
    attrs=(
        Attr("axis", "int", -1, doc="the axis along which mean and variance are; negative ones count from the end"),
        Attr("epsilon", "float", 1e-5, minimum=0.0, maximum=1.0, doc="is added to the variance"),
    ),
    dtypes={"X": ALL_FLOATS},
    source="nGraph MVN",
    doc="Out = (X - mean) / sqrt(variance + epsilon) along the axis: layer_norm without scale and shift",
)
def mvn(x: e.Tensor, *, axis: int, epsilon: float) -> tuple[e.Tensor, e.Tensor]:
    """Mean variance normalisation."""
    at = axis_of(x, axis)
    e.need(x.dims[at] != 0, "X", f"at least one element to normalise along axis {axis}")
    y, _, _, inverse = normalised(x, (at,), epsilon, None, None, [1] * x.rank)
    return y, inverse


@gradient(
    mvn,
    doc="X@GRAD = (Out@GRAD - mean(Out@GRAD) - Out mean(Out@GRAD Out)) Inverse along the axis: X is not read, so that "
    "Out may take its memory",
)
def mvn_grad(out: e.Tensor, inverse: e.Tensor, dout: e.Tensor, *, axis: int, epsilon: float) -> e.Tensor:
    """Hand-written: the derived gradient reads X."""
    at = axis_of(out, axis)
    first, second = (e.reduce_mean(part, at, keep=True) for part in (dout, dout * out))
    return (dout - first - out * second) * inverse
