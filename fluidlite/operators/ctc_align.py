"""ctc_align: collapse a CTC path to its labels (merge repetitions, remove blanks)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from fluidlite.base.dtypes import INTS
from fluidlite.operators.inference import Inferred, all_dims_compatible
from fluidlite.operators.ragged import need_lengths, need_scalar_rows
from fluidlite.operators.sequence_rows import sequence_count, spec_with_lod
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import Spec


def label_mask(path: Sequence[int], starts: Sequence[int], blank: int, merge: bool) -> list[bool]:
    """For each token, whether it remains: it is no blank and does not repeat the previous token of its sequence."""
    first = set(starts)
    return [token != blank and not (merge and i not in first and path[i - 1] == token) for i, token in enumerate(path)]


def _infer(call: Call) -> Inferred:
    x = call.spec("Input")
    if call.has("InputLength"):
        call.need(x.rank == 2, "Input", "[batch, longest]: padded sequences")
        need_lengths(call, "InputLength", "Input", x.dims[0])
        return {"Output": Spec.of(x.dims, x.dtype), "OutputLength": Spec.of((x.dims[0], 1), x.dtype)}
    need_scalar_rows(call, "Input")
    if not call.has("Values"):
        call.fail("Values", "Input itself, where it has LoD: its tokens say the LoD of Output")
    values = call.spec("Values")
    call.need(all_dims_compatible(values.dims, x.dims) and values.dtype == x.dtype, "Values", "Input itself")
    tokens = call.value("Values")
    dims = (sequence_count(x), 1)
    if tokens is None or not x.lod:
        return {"Output": spec_with_lod((-1, 1), x, (), 1), "OutputLength": Spec.of(dims, x.dtype)}
    label_counts = (0, *accumulate(label_mask(tokens, x.lod[0], call.attr("blank"), call.attr("merge_repeated"))))
    offsets = tuple(label_counts[at] for at in x.lod[0])
    return {"Output": spec_with_lod((offsets[-1], 1), x, (offsets,), 1), "OutputLength": Spec.of(dims, x.dtype)}


register_op(
    "ctc_align",
    Inference(_infer, kernel_dtype="Input"),
    Execution(host_only="the remaining tokens of a sequence are counted on the host"),
    inputs=(
        Slot("Input", doc="a token a step: [rows, 1] with LoD, or padded, [batch, longest]"),
        Slot(
            "Values",
            dispensable=True,
            value=True,
            doc="Input again, where it has LoD: its tokens determine the LoD of Output",
        ),
        Slot("InputLength", dispensable=True, doc="how long each padded sequence is"),
    ),
    outputs=(
        Slot("Output", doc="the labels: [labels, 1] with LoD, or [batch, longest]"),
        Slot("OutputLength", dispensable=True, doc="how many labels each sequence has"),
    ),
    attrs=(
        Attr("blank", "int", 0, doc="the token that is no label"),
        Attr("merge_repeated", "bool", True, doc="leave out a token that equals the previous one"),
        Attr("padding_value", "int", 0, doc="the value after the labels of a padded sequence"),
    ),
    dtypes={"Input": INTS, "Values": INTS, "InputLength": INTS},
    doc="Output = the tokens of each sequence without repetitions, and without blanks then",
    source="Fluid ctc_align_op.h; without any label Output is [0, 1], where Fluid's is [[-1]] outside all sequences",
)
