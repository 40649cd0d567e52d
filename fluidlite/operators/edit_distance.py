"""edit_distance: the Levenshtein distance of pairs of sequences."""

from __future__ import annotations

from fluidlite.base.dtypes import INTS
from fluidlite.operators.inference import Inferred, dims_compatible, same_dtype
from fluidlite.operators.ragged import need_lengths, need_scalar_rows, same_count
from fluidlite.operators.sequence_rows import sequence_count
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import Spec


def _infer(call: Call) -> Inferred:
    same_dtype(call, "Refs", "Hyps")
    if call.has("HypsLength") != call.has("RefsLength"):
        present, absent = sorted(("HypsLength", "RefsLength"), key=call.has, reverse=True)
        call.fail(present, f"{absent} beside it: both inputs are padded, or both have LoD")
    if call.has("HypsLength"):
        counts = []
        for slot in ("Hyps", "Refs"):
            spec = call.spec(slot)
            is_padded = spec.rank in (2, 3) and all(dims_compatible(d, 1) for d in spec.dims[2:])
            call.need(is_padded, slot, "[batch, longest]: padded sequences")
            need_lengths(call, f"{slot}Length", slot, spec.dims[0])
            counts.append(spec.dims[0])
    else:
        counts = [sequence_count(need_scalar_rows(call, slot)) for slot in ("Hyps", "Refs")]
    pairs = same_count(call, "Refs", counts[1], "Hyps", counts[0])
    return {"SequenceNum": Spec.of((1,), "int64"), "Out": Spec.of((pairs, 1), "float32")}


register_op(
    "edit_distance",
    Inference(_infer, kernel_dtype="Hyps"),
    Execution(host_only="the table of each pair is filled row by row, as Fluid does it"),
    inputs=(
        Slot("Hyps", doc="the predicted sequences: [rows, 1] with LoD, or padded, [batch, longest]"),
        Slot("Refs", doc="the reference sequences, in the same form"),
        Slot("HypsLength", dispensable=True, doc="how long each padded sequence of Hyps is"),
        Slot("RefsLength", dispensable=True, doc="how long each padded sequence of Refs is"),
    ),
    outputs=(Slot("SequenceNum", doc="number of pairs"), Slot("Out", doc="[pairs, 1]")),
    attrs=(
        Attr("normalized", "bool", False, doc="divide by the length of the sequence of Refs, which has to have one"),
    ),
    dtypes={"Hyps": INTS, "Refs": INTS, "HypsLength": INTS, "RefsLength": INTS},
    doc="Out = the fewest insertions, deletions and substitutions that make a sequence of Refs of that of Hyps "
    "(Levenshtein's distance)",
    source="Fluid edit_distance_op.h",
)
