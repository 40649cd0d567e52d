"""Linear-chain conditional random fields: linear_chain_crf (the cost) and crf_decoding (the best path).

The score of tags s of a sequence x is  start[s0] + sum x[t][s_t] + sum move[s_{t-1}][s_t] + stop[s_last];
row 0 of Transition is start, row 1 stop, the others move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Lod, Spec
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
from fluidlite.operators.samples import WIDE, ints, rand

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


def _sequences(lod: Lod) -> Iterator[tuple[int, int]]:
    offsets = lod[-1]
    return pairwise(offsets)


def _scores(x: Any, transition: Any, stop: bool = True) -> dict[tuple[int, ...], float]:
    """Return the score of every path of tags, one by one."""
    start, end, move = transition[0], transition[1], transition[2:]
    scores = {}
    for path in product(range(x.shape[1]), repeat=len(x)):
        score = start[path[0]] + sum(x[t, tag] for t, tag in enumerate(path))
        score += sum(move[a, b] for a, b in pairwise(path))
        scores[path] = float(score + (end[path[-1]] if stop else 0.0))
    return scores


def _log_sum(scores: Any) -> float:
    most = max(scores)
    return float(most + np.log(sum(np.exp(s - most) for s in scores)))


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any], lod: Mapping[str, Lod]) -> dict[str, Any]:
    x, transition, label = inputs["Emission"], inputs["Transition"], inputs["Label"]
    alpha, costs = np.zeros_like(x), []
    for begin, end in _sequences(lod["Emission"]):
        for t in range(begin, end):
            prefixes = _scores(x[begin : t + 1], transition, stop=False)
            for tag in range(x.shape[1]):
                alpha[t, tag] = sum(np.exp(score) for path, score in prefixes.items() if path[-1] == tag)
            alpha[t] /= alpha[t].sum()
        paths = _scores(x[begin:end], transition) if end > begin else {(): 0.0}
        costs.append(_log_sum(paths.values()) - paths[tuple(label[begin:end, 0].tolist())])
    return {
        "Alpha": alpha,
        "EmissionExps": np.exp(x - x.max(axis=1, keepdims=True)),
        "TransitionExps": np.exp(transition),
        "LogLikelihood": np.asarray(costs).reshape(-1, 1),
    }


def _inputs(steps: int, tags: int) -> dict[str, Any]:
    return {
        "Emission": rand(steps, tags, low=-2, high=2),
        "Transition": rand(tags + 2, tags, seed=1),
        "Label": ints(steps, 1, high=tags, seed=2),
    }


def _samples() -> list[Sample]:
    def case(name: str, tags: int, *offsets: int, label: str = "int64", check: bool = True) -> Sample:
        inputs = _inputs(offsets[-1], tags)
        inputs["Label"] = inputs["Label"].astype(label)
        lod = dict.fromkeys(("Emission", "Label"), (offsets,))
        return Sample(inputs, {}, ("Emission", "Transition") if check else (), lod, name, WIDE)

    return [
        case("sequences", 3, 0, 3, 4, 8),
        case("one_step", 4, 0, 1),
        case("one_tag", 1, 0, 2, 3),
        case("empty_sequence", 2, 0, 2, 2, 5),
        case("int32_label", 3, 0, 2, 5, label="int32"),
    ]


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
    reference=_reference,
    samples=_samples,
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


def _reference_decoding(inputs: Mapping[str, Any], attrs: Mapping[str, Any], lod: Mapping[str, Lod]) -> dict[str, Any]:
    x, best = inputs["Emission"], np.zeros((len(inputs["Emission"]), 1), "int64")
    for begin, end in _sequences(lod["Emission"]):
        if end > begin:
            scores = _scores(x[begin:end], inputs["Transition"])
            best[begin:end, 0] = max(scores, key=lambda path: scores[path])
    if "Label" in inputs:
        best = np.asarray(best == inputs["Label"], "int64")
    return {"ViterbiPath": best}


def _samples_decoding() -> list[Sample]:
    def case(name: str, tags: int, *offsets: int, label: bool = False) -> Sample:
        inputs = _inputs(offsets[-1], tags)
        if not label:
            del inputs["Label"]
        return Sample(inputs, {}, lod=dict.fromkeys(set(inputs) - {"Transition"}, (offsets,)), name=name, dtypes=WIDE)

    return [
        case("sequences", 3, 0, 3, 4, 8),
        case("with_label", 3, 0, 3, 4, 8, label=True),
        case("one_step", 4, 0, 1),
        case("empty_sequence", 2, 0, 2, 2, 5),
    ]


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
    reference=_reference_decoding,
    samples=_samples_decoding,
    doc="ViterbiPath = the tags of the highest score; with Label: 1 where they are right, else 0",
    source="Fluid crf_decoding_op.h",
)
