"""warpctc: the CTC loss (connectionist temporal classification), of labels without an alignment."""

from __future__ import annotations

from fluidlite.base.dtypes import FLOATS, INTS
from fluidlite.operators.inference import Inferred, dims_compatible, grad_like, grad_outputs
from fluidlite.operators.ragged import need_lengths, need_one_level, need_scalar_rows, same_count
from fluidlite.operators.sequence_rows import sequence_count
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.program.rules import GradRule
from fluidlite.tensor.tensor_spec import Spec

_HOST_ONLY = "its recursion over the steps of each sequence is written for the host only"
_LENGTHS = ("LogitsLength", "LabelLength")
_ATTRS = (
    Attr("blank", "int", 0, minimum=0, doc="the class that is no label"),
    Attr("norm_by_times", "bool", False, doc="divide the gradient, and not Loss, by the steps of the sequence"),
)


def _infer(call: Call) -> Inferred:
    logits, label = call.spec("Logits"), call.spec("Label")
    if call.has("LogitsLength") != call.has("LabelLength"):
        present, absent = sorted(_LENGTHS, key=call.has, reverse=True)
        call.fail(present, f"{absent} beside it: both inputs are padded, or both have LoD")
    if call.has("LogitsLength"):
        call.need(logits.rank == 3, "Logits", "[longest, batch, classes]: padded sequences, steps first")
        call.need(label.rank == 2, "Label", "[batch, longest label]: padded sequences")
        batch = same_count(call, "Label", label.dims[0], "Logits", logits.dims[1])
        need_lengths(call, "LogitsLength", "Logits", batch)
        need_lengths(call, "LabelLength", "Label", batch)
    else:
        call.need(logits.rank == 2, "Logits", "[rows, classes], sequences by LoD")
        need_one_level(call, "Logits")
        need_scalar_rows(call, "Label")
        batch = same_count(call, "Label", sequence_count(label), "Logits", sequence_count(logits))
    classes = logits.dims[-1]
    if classes >= 0 and not call.attr("blank") < classes:
        call.fail_attr("blank", f"a class of Logits, which has {classes}: from 0 to {classes - 1}")
    return {"WarpCTCGrad": Spec.of(logits.dims, logits.dtype), "Loss": Spec.of((batch, 1), logits.dtype)}


def _infer_grad(call: Call) -> Inferred:
    if call.has("LogitsLength"):
        need_lengths(call, "LogitsLength", "Logits", call.dims("Logits")[1])
    loss = call.dims("Loss@GRAD")
    call.need(len(loss) == 2 and dims_compatible(loss[1], 1), "Loss@GRAD", "[sequences, 1]")
    return grad_like("Logits")(call)


register_op(
    "warpctc",
    Differentiation(rule=GradRule("warpctc_grad", ("Logits", "LogitsLength", "WarpCTCGrad", "Loss@GRAD"), ("Logits",))),
    Inference(_infer, kernel_dtype="Logits"),
    Execution(host_only=_HOST_ONLY),
    inputs=(
        Slot("Logits", doc="scores of classes before softmax: [rows, classes] with LoD, or [longest, batch, classes]"),
        Slot("Label", doc="classes without blanks: [labels, 1] with LoD, or [batch, longest label]"),
        Slot("LogitsLength", dispensable=True, doc="how many steps each padded sequence has"),
        Slot("LabelLength", dispensable=True, doc="how many labels each padded sequence has"),
    ),
    outputs=(
        Slot("WarpCTCGrad", intermediate=True, content="the derivative of each sequence's Loss by Logits"),
        Slot("Loss", doc="[sequences, 1]; 0 where labels need more steps than there are, as warp-ctc has it"),
    ),
    attrs=_ATTRS,
    dtypes={"Logits": FLOATS, "Label": INTS, "LogitsLength": INTS, "LabelLength": INTS},
    doc="Loss = -log(sum of the probabilities of all paths of classes that are Label once repetitions, and blanks "
    "then, are left out), where a path's probability is the product of the softmax of Logits over its steps",
    source="Graves et al., Connectionist temporal classification (2006); Fluid warpctc_op.h",
)

register_op(
    "warpctc_grad",
    Inference(_infer_grad, kernel_dtype="Loss@GRAD"),
    Execution(host_only=_HOST_ONLY),
    inputs=(
        Slot("Logits", metadata_only=True),
        Slot("LogitsLength", dispensable=True),
        "WarpCTCGrad",
        "Loss@GRAD",
    ),
    outputs=grad_outputs("Logits"),
    attrs=_ATTRS,
    doc="Logits@GRAD = WarpCTCGrad times Loss@GRAD of the row's sequence, by its steps if norm_by_times",
)
