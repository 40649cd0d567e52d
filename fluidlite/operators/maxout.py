"""maxout: the maximum over groups of channels."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Execution

_ATTRS = (
    Attr("groups", "int", minimum=1, doc="how many neighbouring channels become one"),
    Attr("axis", "int", 1, doc="where the channels are: 1, or -1 or 3 (channels last)"),
)


def _grouped(x: e.Tensor, groups: int, axis: int) -> tuple[e.Tensor, int]:
    """X with its channels split into (outputs, group), and the group's axis."""
    if x.rank != 4:
        e.fail("X", "[batch, channels, height, width], or channels last")
    if axis not in (1, -1, 3):
        e.fail_attr("axis", "1, -1 or 3")
    at, channels = axis % 4, x.dims[axis]
    e.need_attr(channels % groups == 0, "groups", "a divisor of the channels of X, {0}", channels)
    return e.reshape(x, (*x.dims[:at], channels // groups, groups, *x.dims[at + 1 :])), at + 1


@operator(
    "maxout",
    inputs={"X": "[batch, channels, height, width], or channels last if axis is -1 or 3"},
    attrs=_ATTRS,
    dtypes={"X": ALL_FLOATS},
    source="Fluid maxout_op.cc",
    doc="Out[n, c] = max over g < groups of X[n, c groups + g], c counting along axis",
)
def maxout(x: e.Tensor, *, groups: int, axis: int) -> e.Tensor:
    """The maximum along the group's axis."""
    return e.reduce_max(*_grouped(x, groups, axis))


@gradient(
    maxout,
    Execution(memory="where arrays compute, the mask of maxima and the gradient before it is stored: three times X"),
    doc="X@GRAD = Out@GRAD at the first channel of each group that equals Out, else 0",
)
def maxout_grad(x: e.Tensor, out: e.Tensor, dout: e.Tensor, *, groups: int, axis: int) -> e.Tensor:
    """Hand-written: the derived gradient goes to each of several equal maxima; this one to the first."""
    parts, at = _grouped(x, groups, axis)
    number = e.reshape(e.iota((groups,), 0), (groups, *(1,) * (parts.rank - at - 1)))
    chosen = number == e.argmax(parts, at, keep=True)
    return e.reshape(e.where(chosen, e.unsqueeze(dout, at), 0), x.dims)
