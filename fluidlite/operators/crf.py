"""Linear-chain conditional random fields: linear_chain_crf (the cost) and crf_decoding (the best path).

The score of tags s of a sequence x is  start[s0] + sum x[t][s_t] + sum move[s_{t-1}][s_t] + stop[s_last];
row 0 of Transition is start, row 1 stop, the others move.
"""

from __future__ import annotations

from fluidlite.base.dtypes import FLOATS, INTS
from fluidlite.operators.inference import (
    Inferred,
    all_dims_compatible,
    dims_compatible,
    grad_like,
    grad_outputs,
    same_dtype,
    spec_like,
)
from fluidlite.operators.ragged import need_lengths
from fluidlite.operators.sequence_rows import need_lod, sequence_count
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Slot
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.program.rules import GradRule
from fluidlite.tensor.tensor_spec import Spec

_HOST_ONLY = "its recursion over the steps of each sequence is written for the host only, as in Fluid"
_DTYPES = {"Emission": FLOATS, "Transition": FLOATS, "Label": INTS, "Length": INTS}
_LENGTH = Slot(
    "Length", dispensable=True, doc="how long each padded sequence is; behind it scores and labels do not count"
)


def _check(call: Call) -> None:
    emission, transition = call.spec("Emission"), call.dims("Transition")
    padded = call.has("Length")
    if padded:
        call.need(emission.rank == 3, "Emission", "[batch, longest, tags]: padded sequences, for Length is given")
        need_lengths(call, "Length", "Emission", emission.dims[0])
    else:
        call.need(emission.rank == 2, "Emission", "[steps, tags]")
        need_lod(call, "Emission")
    same_dtype(call, "Transition", "Emission")
    tags = emission.dims[-1]
    if len(transition) != 2 or (tags >= 0 and not all_dims_compatible(transition, (tags + 2, tags))):
        call.fail("Transition", f"[tags + 2, tags] for the {tags} tags of Emission")
    if call.has("Label"):
        label = call.dims("Label")
        if padded:
            fits = len(label) in (2, 3) and all_dims_compatible(label[:2], emission.dims[:2])
            fits = fits and all(dims_compatible(d, 1) for d in label[2:])
            call.need(fits, "Label", f"{[*emission.dims[:2], 1]}, a tag for each step of Emission")
            return
        call.need(len(label) == 2 and dims_compatible(label[1], 1), "Label", "[steps, 1]")
        if not dims_compatible(label[0], emission.dims[0]):
            call.fail("Label", f"{[emission.dims[0], 1]}, a tag for each step of Emission")
        lod = call.lod("Label")
        if lod and emission.lod and lod[-1] != emission.lod[-1]:
            call.fail("Label", f"the sequences of Emission, whose LoD is {emission.lod}")


def _infer(call: Call) -> Inferred:
    _check(call)
    emission, transition = call.spec("Emission"), call.spec("Transition")
    sequences = emission.dims[0] if call.has("Length") else sequence_count(emission)
    return {
        "Alpha": Spec.of(emission.dims, emission.dtype),
        "EmissionExps": Spec.of(emission.dims, emission.dtype),
        "TransitionExps": Spec.of(transition.dims, transition.dtype),
        "LogLikelihood": Spec.of((sequences, 1), emission.dtype),
    }


register_op(
    "linear_chain_crf",
    Differentiation(
        rule=GradRule(
            "linear_chain_crf_grad",
            (
                "Emission",
                "Transition",
                "Label",
                "Length",
                "Alpha",
                "EmissionExps",
                "TransitionExps",
                "LogLikelihood@GRAD",
            ),
            ("Emission", "Transition"),
        )
    ),
    Inference(_infer, kernel_dtype="Emission"),
    Execution(host_only=_HOST_ONLY),
    inputs=(
        Slot("Emission", doc="x: a score for each step and tag, [steps, tags] with LoD, or [batch, longest, tags]"),
        Slot("Transition", doc="start, stop and move, [tags + 2, tags]"),
        Slot("Label", doc="the tag of each step, [steps, 1], or padded, [batch, longest]"),
        _LENGTH,
    ),
    outputs=(
        Slot("Alpha", intermediate=True, content="exp(forward score) of each step, scaled so that a row sums to 1"),
        Slot("EmissionExps", intermediate=True, content="exp(Emission - the maximum of its row)"),
        Slot("TransitionExps", intermediate=True, content="exp(Transition)"),
        Slot("LogLikelihood", doc="the cost of each sequence: minus the log-likelihood of Label"),
    ),
    dtypes=_DTYPES,
    doc="LogLikelihood = log(sum over paths of exp(score)) - score of Label; 0 for an empty sequence",
    source="Fluid linear_chain_crf_op.h",
)

register_op(
    "linear_chain_crf_grad",
    Inference(grad_like("Emission", "Transition"), kernel_dtype="Emission"),
    Execution(host_only=_HOST_ONLY),
    inputs=(
        "Emission",
        "Transition",
        "Label",
        _LENGTH,
        "Alpha",
        "EmissionExps",
        "TransitionExps",
        "LogLikelihood@GRAD",
    ),
    outputs=grad_outputs("Emission", "Transition"),
    doc="Emission@GRAD = LogLikelihood@GRAD (P(tag at step) - [Label]); Transition@GRAD likewise of pairs",
)

# crf_decoding ------------------------------------------------------------------------------------------------------


def _infer_decoding(call: Call) -> Inferred:
    _check(call)
    emission = call.spec("Emission")
    if call.has("Length"):
        return {"ViterbiPath": Spec.of(emission.dims[:2], "int64")}
    return {"ViterbiPath": spec_like(emission, (emission.dims[0], 1), "int64")}


register_op(
    "crf_decoding",
    Inference(_infer_decoding, kernel_dtype="Emission"),
    Execution(host_only=_HOST_ONLY),
    inputs=(
        Slot("Emission", doc="scores, as of linear_chain_crf"),
        Slot("Transition", doc="weights, as of linear_chain_crf"),
        Slot("Label", dispensable=True),
        _LENGTH,
    ),
    outputs=("ViterbiPath",),
    dtypes=_DTYPES,
    doc="ViterbiPath = the tags of the highest score; with Label: 1 where they are right, else 0; "
    "behind the end of a padded sequence 0",
    source="Fluid crf_decoding_op.h",
)
