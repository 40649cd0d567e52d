"""gather_tree: trace the beams of a beam search back from the last step to the first."""

from __future__ import annotations

from fluidlite.base.dtypes import INTS
from fluidlite.operators.inference import Inferred, all_dims_compatible, merged_dims, same_dtype, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Slot
from fluidlite.program.operator_options import Inference
from fluidlite.program.registry import register_op


def _infer(call: Call) -> Inferred:
    ids, parents = call.spec("Ids"), call.dims("Parents")
    call.need(ids.rank == 3, "Ids", "a rank of 3: steps, batch and beams")
    same_dtype(call, "Parents", "Ids")
    if not all_dims_compatible(ids.dims, parents):
        call.fail("Parents", f"{list(ids.dims)}, the dims of Ids")
    return {"Out": spec_like(ids, merged_dims(ids.dims, parents))}


register_op(
    "gather_tree",
    Inference(_infer),
    inputs=(
        Slot("Ids", doc="the id of each beam at each step, [steps, batch, beams]"),
        Slot(
            "Parents", doc="the beam of the previous step that each beam extends; those of the first step are not read"
        ),
    ),
    outputs=("Out",),
    dtypes={"Ids": INTS, "Parents": INTS},
    doc="Out[t, n, k] = Ids[t, n, b(t)], where b is k at the last step, and b(t) = Parents[t + 1, n, b(t + 1)] before; "
    "a parent outside 0 <= parent < beams is an OutOfRangeError",
    source="Fluid gather_tree_op.cc",
)
