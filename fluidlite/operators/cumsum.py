"""cumsum: cumulative sums along an axis; optionally reverse or exclusive."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation


@operator(
    "cumsum",
    Differentiation(reads=(), doc="X@GRAD = the cumsum of Out@GRAD from the other end"),
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    source="Fluid cumsum_op.cc",
    attrs=(
        Attr("axis", "int", -1, doc="the dim along which is summed; negative ones count from the end"),
        Attr("flatten", "bool", False, doc="sum over all elements in their order; Out has one dim"),
        Attr("exclusive", "bool", False, doc="leave the element itself out: the first sum is 0"),
        Attr("reverse", "bool", False, doc="begin at the end"),
    ),
    doc="Out[i] = X[0] + ... + X[i] along an axis",
)
def cumsum(x: e.Tensor, *, axis: int, flatten: bool, exclusive: bool, reverse: bool) -> e.Tensor:
    """An additive scan."""
    if flatten:
        return e.scan("sum", e.reshape(x, (e.product(x.dims),)), 0, reverse, exclusive)
    if x.rank:
        return e.scan("sum", x, e.axis("axis", axis, x), reverse, exclusive)
    if axis not in (-1, 0):
        e.fail_attr("axis", "-1 or 0: X has no dims")
    return e.reshape(e.scan("sum", e.reshape(x, (1,)), 0, reverse, exclusive), ())
