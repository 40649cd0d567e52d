"""lstm_unit: one step of an LSTM, given the sums of its matrix products."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.attributes import need_dtype
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation


@operator(
    "lstm_unit",
    Differentiation(
        reads=("X", "C_prev"), doc="X@GRAD, C_prev@GRAD = through the gates and the cell, which are computed again"
    ),
    inputs=[
        Slot("X", doc="[rows, 4 units]: input, forget and output gate, candidate"),
        Slot("C_prev", doc="the cell before, [rows, units]"),
    ],
    outputs=["C", "H"],
    attrs=[Attr("forget_bias", "float", 0.0, doc="added to the forget gate")],
    dtypes={"X": ALL_FLOATS, "C_prev": ALL_FLOATS},
    doc="C = C_prev sigmoid(forget + forget_bias) + sigmoid(input) tanh(candidate), H = sigmoid(output) tanh(C)",
    source="Fluid lstm_unit_op.h",
)
def lstm_unit(x: Any, c_prev: Any, *, forget_bias: Any) -> Any:
    """Slice the four gates of each row, then compute the cell."""
    if c_prev.rank != 2:
        e.fail("C_prev", "a rank of 2")
    rows, units = c_prev.dims
    e.need_dims(x, (rows, 4 * units), "X", "4 gates of as many units as C_prev has")
    need_dtype(x, [c_prev], "X")
    enter, keep, out, candidate = (e.slice_axis(x, 1, i * units, units) for i in range(4))
    cell = c_prev * e.sigmoid(keep + forget_bias) + e.sigmoid(enter) * e.tanh(candidate)
    return cell, e.sigmoid(out) * e.tanh(cell)
