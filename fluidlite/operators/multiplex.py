"""multiplex: select each row from one of several tensors."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.operands import same_dtypes
from fluidlite.program.opdef import Slot
from fluidlite.program.operator_options import Inference


def _column(ids: e.Tensor, count: int, rank: int) -> e.Tensor:
    """Ids, checked and reshaped to broadcast with tensors of a rank."""
    return e.reshape(e.checked(ids, count), (ids.dims[0], *(1,) * (rank - 1)))


@operator(
    "multiplex",
    Inference(kernel_dtype="X"),
    inputs=(Slot("Ids", doc="for each row, which X it comes from"), Slot("X", duplicable=True, doc="of equal dims")),
    dtypes={"Ids": INTS, "X": ALL},
    source="Fluid multiplex_op.cc",
    doc="Out[i] = X[Ids[i]][i]; an id outside 0 <= id < number of X is an OutOfRangeError",
)
def multiplex(ids: e.Tensor, x: Sequence[e.Tensor]) -> e.Tensor:
    """One select for each tensor after the first."""
    if len(x) < 2:
        e.fail("X", "two tensors or more")
    if ids.rank != 2 or not e.agree(ids.dims[1], 1):
        e.fail("Ids", "[rows, 1]")
    first = x[0]
    if first.rank < 2:
        e.fail("X", "tensors of rank 2 or more")
    same_dtypes(x, "X")
    for operand in x[1:]:
        if not e.all_agree(first.dims, operand.dims):
            e.fail("X", "tensors of equal dims")
    if not e.agree(ids.dims[0], first.dims[0]):
        e.fail("Ids", f"{e.describe_dims(first.dims)[0]} rows, as X")
    column, out = _column(ids, len(x), first.rank), first
    for k, operand in enumerate(x[1:], 1):
        out = e.where(column != k, out, operand)
    return out


@gradient(multiplex, metadata=("X",), doc="X@GRAD[k][i] = Out@GRAD[i] where Ids[i] is k, else 0")
def multiplex_grad(ids: e.Tensor, x: Sequence[e.Tensor], dout: e.Tensor) -> list[e.Tensor]:
    """Hand-written: the derived gradient is a chain of selects for each X."""
    for operand in x:
        e.need_dims(dout, operand.dims, "Out@GRAD", "X")
    column = _column(ids, len(x), dout.rank)
    return [e.where(column == k, dout, 0) for k in range(len(x))]
