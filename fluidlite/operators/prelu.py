"""prelu: leaky relu with a learned slope, which is a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr import where
from fluidlite.operators.inference import Inferred, dims_compatible, same_dtype, size, spec_like
from fluidlite.operators.scalar_op import SUM_MEMORY, Elementwise, scalar_op
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Aliasing, Differentiation, Inference
from fluidlite.program.rules import ElementwiseOperands


def _infer(call: Call) -> Inferred:
    x, alpha, mode = call.dims("X"), call.dims("Alpha"), call.attr("mode")
    same_dtype(call, "Alpha", "X")
    if mode == "all" and not dims_compatible(size(alpha), 1):
        call.fail("Alpha", "one element, since mode is 'all'")
    if mode == "channel":
        call.need(len(x) >= 2, "X", "[rows, channels, ...], since mode is 'channel'")
        if not dims_compatible(size(alpha), x[1]):
            call.fail("Alpha", f"{x[1]} elements, one for each channel of X ({call.describe('X')})")
    if mode == "element":
        call.need(len(x) >= 1, "X", "rank 1 or more, since mode is 'element'")
        if not (dims_compatible(size(alpha), size(x)) or dims_compatible(size(alpha), size(x[1:]))):
            call.fail("Alpha", f"an element for each of X ({call.describe('X')}), or for each of one of its rows")
    return {"Out": spec_like(call.spec("X"))}


def _broadcast_dims(operands: ElementwiseOperands) -> Mapping[str, tuple[Any, ...]]:
    """Dims of Alpha that broadcast with X; Fluid only checks its number of elements."""
    mode, x = operands.attr("mode"), operands.dims("X")
    if mode == "all":
        dims: tuple[Any, ...] = (1,) * len(x)
    elif mode == "channel":
        dims = (1, x[1], *(1,) * (len(x) - 2))
    else:
        dims = x if prod(operands.dims("Alpha")) == prod(x) else (1, *x[1:])
    return {"Alpha": dims, "Alpha@GRAD": dims}


# At 0 the slope is used, as in Fluid. A slope or gradient of NaN affects only elements that use it.
scalar_op(
    "prelu",
    lambda x, alpha: where(x > 0, x, alpha * x),
    Differentiation(memory=SUM_MEMORY),
    Inference(_infer),
    Aliasing(may={"Out": "X"}),
    Elementwise(placed=_broadcast_dims, differentiable=("X", "Alpha"), broadcasts=True),
    attrs=(
        Attr(
            "mode",
            "str",
            "all",
            choices=("all", "channel", "element"),
            doc="one slope for all, for each channel (dim 1), or for each element",
        ),
    ),
    grad=lambda x, alpha, dout: (where(x > 0, dout, alpha * dout), where(x > 0, 0, x * dout)),
    dtypes={"X": ALL_FLOATS, "Alpha": ALL_FLOATS},
    doc="Out = X if X > 0, else Alpha X",
    source="Fluid prelu_op.h",
)
