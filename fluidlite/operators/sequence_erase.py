"""sequence_erase: sequences without some words."""

from __future__ import annotations

from itertools import accumulate

from fluidlite import expr as e
from fluidlite.base.dtypes import INTS
from fluidlite.expr.declare import operator
from fluidlite.operators.inference import Inferred, all_agree
from fluidlite.operators.ragged import need_number_a_row
from fluidlite.operators.sequence_rows import spec_with_lod
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Inference


def _infer_erase(call: Call) -> Inferred:
    x = need_number_a_row(call, "X")
    values = call.spec("Values")
    call.need(all_agree(values.dims, x.dims) and values.dtype == x.dtype, "Values", "X itself")
    numbers = call.value("Values")
    if numbers is None or not x.lod:
        return {"Out": spec_with_lod((-1, *x.dims[1:]), x, (), 1)}
    left = (0, *accumulate(n not in call.attr("tokens") for n in numbers))
    offsets = tuple(left[at] for at in x.lod[0])
    return {"Out": spec_with_lod((offsets[-1], *x.dims[1:]), x, (offsets,), 1)}


@operator(
    "sequence_erase",
    Inference(_infer_erase),
    inputs=("X", Slot("Values", value=True, table=True, doc="X again: its numbers say the LoD of Out")),
    attrs=(Attr("tokens", "ints", doc="what is left out"),),
    dtypes={"X": INTS, "Values": INTS},
    source="Fluid sequence_erase_op.h",
    doc="Out = the numbers of each sequence that are not among tokens, in order",
)
def sequence_erase(x: e.Tensor, values: e.Tensor, *, tokens: tuple[int, ...]) -> e.Tensor:
    """How many are left is known; where they stand is a running sum."""
    rows, flat = x.dims[0], e.reshape(x, (x.dims[0],))
    stays = e.full((rows,), 1, "int64")
    for token in tokens:
        stays = e.where(e.equal(flat, token), 0, stays)
    left = e.results("Out")[0][0]
    at = e.where(stays > 0, e.scan("sum", stays, 0, exclusive=True), left)  # out of range: added nowhere
    of = e.add_at(e.iota((rows,), 0), at, 0, left)
    return e.take(x, of, 0, "clamp")
