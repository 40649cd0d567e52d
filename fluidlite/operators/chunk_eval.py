"""chunk_eval: precision, recall and F1 of chunks, which are runs of tokens marked by tags."""

from __future__ import annotations

from fluidlite.base.dtypes import INTS
from fluidlite.operators.inference import Inferred, all_dims_compatible, dims_compatible, same_dtype
from fluidlite.operators.ragged import need_lengths, need_scalar_rows
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import Spec


def _infer(call: Call) -> Inferred:
    same_dtype(call, "Label", "Inference")
    inference, label = call.spec("Inference"), call.spec("Label")
    if call.has("SeqLength"):
        for slot, spec in (("Inference", inference), ("Label", label)):
            padded = spec.rank in (2, 3) and all(dims_compatible(d, 1) for d in spec.dims[2:])
            call.need(padded, slot, "[batch, longest]: padded sequences")
        call.need(
            all_dims_compatible(inference.dims[:2], label.dims[:2]),
            "Label",
            f"{list(inference.dims)}, the dims of Inference",
        )
        need_lengths(call, "SeqLength", "Inference", inference.dims[0])
    else:
        for slot in ("Inference", "Label"):
            need_scalar_rows(call, slot)
        if inference.lod and label.lod and inference.lod != label.lod:
            call.fail("Label", f"the sequences of Inference, whose LoD is {inference.lod}")
    types = call.attr("num_chunk_types")
    if not all(0 <= excluded < types for excluded in call.attr("excluded_chunk_types")):
        call.fail_attr("excluded_chunk_types", f"types of chunks, from 0 to {types - 1}")
    ratio, count = Spec.of((1,), "float32"), Spec.of((1,), "int64")
    return {
        **dict.fromkeys(("Precision", "Recall", "F1-Score"), ratio),
        **dict.fromkeys(("NumInferChunks", "NumLabelChunks", "NumCorrectChunks"), count),
    }


register_op(
    "chunk_eval",
    Inference(_infer, kernel_dtype="Inference"),
    Execution(host_only="chunks are walked over on the host, as in Fluid"),
    inputs=(
        Slot("Inference", doc="the predicted tags: [rows, 1] with LoD, or padded, [batch, longest]"),
        Slot("Label", doc="the true tags, in the same form"),
        Slot("SeqLength", dispensable=True, doc="how long each padded sequence is"),
    ),
    outputs=(
        Slot("Precision", doc="NumCorrectChunks / NumInferChunks; 0 of none"),
        Slot("Recall", doc="NumCorrectChunks / NumLabelChunks; 0 of none"),
        Slot("F1-Score", doc="their harmonic mean; 0 of no right chunks"),
        "NumInferChunks",
        "NumLabelChunks",
        "NumCorrectChunks",
    ),
    attrs=(
        Attr("num_chunk_types", "int", minimum=1, doc="number of types of chunks"),
        Attr(
            "chunk_scheme", "str", "IOB", choices=("IOB", "IOE", "IOBES", "plain"), doc="the scheme of tags of a type"
        ),
        Attr("excluded_chunk_types", "ints", (), doc="types that do not count"),
    ),
    dtypes={"Inference": INTS, "Label": INTS, "SeqLength": INTS},
    doc="counts of chunks, and of those that both have from and to the same row and of one type. Tag = type times the "
    "scheme's tags + begin, inside (IOB); inside, end (IOE); begin, inside, end, single (IOBES); 0 (plain); the tag "
    "behind the last is in no chunk",
    source="Fluid chunk_eval_op.h",
)
