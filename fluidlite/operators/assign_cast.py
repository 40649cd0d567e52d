"""Copies of a tensor: assign; assign_like, which compares dims; cast, which converts the dtype."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL
from fluidlite.expr.declare import operator
from fluidlite.operators.inference import Inferred, spec_like
from fluidlite.operators.scalar_op import unary
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Differentiation, Inference

# assign and cast ---------------------------------------------------------------------------------------------------


def copy_back(maker: Any) -> None:
    """Append an operator that copies Out@GRAD to X@GRAD."""
    maker.op("assign", {"X": maker.output_grad("Out")}, {"Out": maker.input_grad("X")})


@operator(
    "assign", Differentiation(rule=copy_back), dtypes={"X": ALL}, doc="Out = X, copied", source="Fluid assign_op.cc"
)
def assign(x: e.Tensor) -> e.Tensor:
    """Return X."""
    return x


@operator(
    "rnn_memory_helper",
    Differentiation(rule=copy_back),
    attrs=(Attr("dtype", "dtype", optional=True, doc="accepted for Fluid programs; of no effect"),),
    dtypes={"X": ALL},
    doc="Out = X, copied: the state of a Fluid recurrent network between two steps",
    source="Fluid rnn_memory_helper_op.cc",
)
def rnn_memory_helper(x: e.Tensor) -> e.Tensor:
    """Return X."""
    return x


@operator(
    "assign_like",
    Differentiation(rule=copy_back),
    Aliasing(may={"Out": "X"}),
    inputs=["X", Slot("Like", metadata_only=True)],
    dtypes={"X": ALL},
    doc="Out = X, which must have the dims and the dtype of Like: fluid.gradients appends it to a gradient of the user "
    "whose dims are known only at run time",
    source="fluid.gradients, which checks dims that are known when the program is built",
)
def assign_like(x: e.Tensor, like: e.Tensor) -> e.Tensor:
    """Dims that are unknown in X are taken from Like."""
    if not e.all_agree(x.dims, like.dims):
        e.fail("X", f"{e.describe_dims(like.dims)}, the dims of Like")
    e.same_dtype(x, like)
    return x


def _infer_cast(call: Call) -> Inferred:
    if call.attr("in_dtype") not in (None, call.dtype("X")):
        call.fail_attr("in_dtype", f"{call.dtype('X')}, the dtype of X")
    return {"Out": spec_like(call.spec("X"), dtype=call.attr("out_dtype"))}


def _grad_cast(maker: Any) -> None:
    dout = maker.output_grad("Out")
    attrs = {"in_dtype": maker.attr("out_dtype"), "out_dtype": maker.spec("X").dtype}
    maker.op("cast", {"X": dout}, {"Out": maker.input_grad("X")}, attrs)


unary(
    "cast",
    lambda x, *, out_dtype: e.cast(x, out_dtype),
    Inference(_infer_cast),
    Aliasing(may={}),
    grad=_grad_cast,
    dtypes={"X": ALL},
    attrs=(
        Attr("in_dtype", "dtype", optional=True, doc="the dtype of X; it is checked"),
        Attr("out_dtype", "dtype", doc="the dtype of Out"),
    ),
    doc="Out = X in another dtype: floats become integers by truncation, saturate, and NaN becomes 0",
    source="Fluid cast_op.h",
)
