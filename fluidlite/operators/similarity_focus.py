"""similarity_focus: a mask of the maxima of selected feature planes, one in each row and column."""

from __future__ import annotations

from fluidlite.base.dtypes import FLOATS
from fluidlite.operators.inference import Inferred, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.program.registry import register_op


def _infer(call: Call) -> Inferred:
    x, axis, indexes = call.spec("X"), call.attr("axis"), call.attr("indexes")
    call.need(x.rank == 4, "X", "a rank of 4: batch and three dims of features")
    size = x.dims[axis]
    if not indexes or not all(i >= 0 and (size < 0 or i < size) for i in indexes):
        bound = f"less than {size}, the size of dim {axis} of X" if size >= 0 else "0 or more"
        call.fail_attr("indexes", f"one index or more, each {bound}")
    return {"Out": spec_like(x)}


register_op(
    "similarity_focus",
    Differentiation(stop_gradient={"X": "Out is 0 or 1: its derivative is 0 almost everywhere"}),
    Inference(_infer),
    inputs=("X",),
    outputs=("Out",),
    attrs=(
        Attr("axis", "int", choices=(1, 2, 3), doc="the dim of X that indexes count"),
        Attr("indexes", "ints", doc="the selected planes; Out is the union of their masks"),
    ),
    dtypes={"X": FLOATS},
    doc="Out = 1 at the chosen cells, all along the axis, else 0: of each plane the largest cell, then the largest one "
    "in rows and columns without a chosen cell, until there are no more; of equal ones the first, NaN last",
    source="Fluid similarity_focus_op.cc",
)
