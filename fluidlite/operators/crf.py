"""Linear-chain conditional random fields: linear_chain_crf (the cost) and crf_decoding (the best path).

The score of tags s of a sequence x is  start[s0] + sum x[t][s_t] + sum move[s_{t-1}][s_t] + stop[s_last];
row 0 of Transition is start, row 1 stop, the others move.
"""

from __future__ import annotations

from fluidlite.base.dtypes import FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import GradRule, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import (
    Inferred,
    agree,
    all_agree,
    grad_inputs,
    grad_like,
    grad_outputs,
    like,
    same_dtype,
)

_HOST_ONLY = "its recursion over the steps of each sequence is written for the host only, as in Fluid"
_TYPES = {"Emission": FLOATS, "Transition": FLOATS, "Label": INTS}


def _check(call: Call) -> None:
    emission, transition = call.spec("Emission"), call.dims("Transition")
    call.need(emission.rank == 2, "Emission", "[steps, tags]")
    if not emission.lod_level:
        call.fail("Emission", "a LoD tensor: its sequences", do="declare the data with lod_level=1, or use lod_reset")
    same_dtype(call, "Transition", "Emission")
    tags = emission.dims[1]
    if len(transition) != 2 or (tags >= 0 and not all_agree(transition, (tags + 2, tags))):
        call.fail("Transition", f"[tags + 2, tags] for the {tags} tags of Emission")
    if call.has("Label"):
        label = call.dims("Label")
        call.need(len(label) == 2 and agree(label[1], 1), "Label", "[steps, 1]")
        if not agree(label[0], emission.dims[0]):
            call.fail("Label", f"{[emission.dims[0], 1]}, a tag for each step of Emission")


def _infer(call: Call) -> Inferred:
    _check(call)
    emission, transition = call.spec("Emission"), call.spec("Transition")
    sequences = len(emission.lod[-1]) - 1 if emission.lod else -1
    return {
        "Alpha": Spec.of(emission.dims, emission.dtype),
        "EmissionExps": Spec.of(emission.dims, emission.dtype),
        "TransitionExps": Spec.of(transition.dims, transition.dtype),
        "LogLikelihood": Spec.of((sequences, 1), emission.dtype),
    }


register_op(
    "linear_chain_crf",
    inputs=(
        Slot("Emission", doc="x: a score for each step and tag, [steps, tags], sequences by LoD"),
        Slot("Transition", doc="start, stop and move, [tags + 2, tags]"),
        "Label",
    ),
    outputs=(
        Slot("Alpha", intermediate=True, content="exp(forward score) of each step, scaled so that a row sums to 1"),
        Slot("EmissionExps", intermediate=True, content="exp(Emission - the maximum of its row)"),
        Slot("TransitionExps", intermediate=True, content="exp(Transition)"),
        Slot("LogLikelihood", doc="the cost of each sequence: minus the log-likelihood of Label"),
    ),
    infer=_infer,
    grad=GradRule(
        "linear_chain_crf_grad",
        ("Emission", "Transition", "Label", "Alpha", "EmissionExps", "TransitionExps", "LogLikelihood@GRAD"),
        ("Emission", "Transition"),
    ),
    host_only=_HOST_ONLY,
    kernel_dtype="Emission",
    dtypes=_TYPES,
    doc="LogLikelihood = log(sum over paths of exp(score)) - score of Label; 0 for an empty sequence",
    source="Fluid linear_chain_crf_op.h",
)

register_op(
    "linear_chain_crf_grad",
    inputs=grad_inputs(
        "Emission", "Transition", "Label", "Alpha", "EmissionExps", "TransitionExps", "LogLikelihood@GRAD"
    ),
    outputs=grad_outputs("Emission", "Transition"),
    infer=grad_like("Emission", "Transition"),
    host_only=_HOST_ONLY,
    kernel_dtype="Emission",
    doc="Emission@GRAD = LogLikelihood@GRAD (P(tag at step) - [Label]); Transition@GRAD likewise of pairs",
)

# crf_decoding ------------------------------------------------------------------------------------------------------


def _infer_decoding(call: Call) -> Inferred:
    _check(call)
    emission = call.spec("Emission")
    return {"ViterbiPath": like(emission, (emission.dims[0], 1), "int64")}


register_op(
    "crf_decoding",
    inputs=(
        Slot("Emission", doc="scores, as of linear_chain_crf"),
        Slot("Transition", doc="weights, as of linear_chain_crf"),
        Slot("Label", dispensable=True),
    ),
    outputs=("ViterbiPath",),
    infer=_infer_decoding,
    host_only=_HOST_ONLY,
    kernel_dtype="Emission",
    dtypes=_TYPES,
    doc="ViterbiPath = the tags of the highest score; with Label: 1 where they are right, else 0",
    source="Fluid crf_decoding_op.h",
)
