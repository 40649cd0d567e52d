"""sequence_erase: remove given tokens from sequences."""

from __future__ import annotations

from itertools import accumulate

from fluidlite import expr as e
from fluidlite.base.dtypes import INTS
from fluidlite.expr.declare import operator
from fluidlite.operators.inference import Inferred, all_dims_compatible
from fluidlite.operators.ragged import need_scalar_rows
from fluidlite.operators.sequence_rows import spec_with_lod
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Inference


def _infer_erase(call: Call) -> Inferred:
    x = need_scalar_rows(call, "X")
    values = call.spec("Values")
    call.need(all_dims_compatible(values.dims, x.dims) and values.dtype == x.dtype, "Values", "X itself")
    numbers = call.value("Values")
    if numbers is None or not x.lod:
        return {"Out": spec_with_lod((-1, *x.dims[1:]), x, (), 1)}
    left = (0, *accumulate(n not in call.attr("tokens") for n in numbers))
    offsets = tuple(left[at] for at in x.lod[0])
    return {"Out": spec_with_lod((offsets[-1], *x.dims[1:]), x, (offsets,), 1)}


@operator(
    "sequence_erase",
    Inference(_infer_erase),
    inputs=("X", Slot("Values", value=True, table=True, doc="X itself: its numbers determine the LoD of Out")),
    attrs=(Attr("tokens", "ints", doc="the tokens to remove"),),
    dtypes={"X": INTS, "Values": INTS},
    source="Fluid sequence_erase_op.h",
    doc="Out = the numbers of each sequence that are not among tokens, in order",
)
def sequence_erase(x: e.Tensor, values: e.Tensor, *, tokens: tuple[int, ...]) -> e.Tensor:
    """Inference has counted the remaining tokens; an exclusive scan gives their positions."""
    rows, flat = x.dims[0], e.reshape(x, (x.dims[0],))
    is_kept = e.full((rows,), 1, "int64")
    for token in tokens:
        is_kept = e.where(e.equal(flat, token), 0, is_kept)
    left = e.results("Out")[0][0]
    at = e.where(is_kept > 0, e.scan("sum", is_kept, 0, exclusive=True), left)  # an index out of range adds nothing
    source = e.add_at(e.iota((rows,), 0), at, 0, left)
    return e.take(x, source, 0, "clamp")
