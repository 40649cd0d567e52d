"""Samples and references of fluidlite.operators.crf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, ints, rand
from fluidlite.conformance.samples import Sample, register_samples
from fluidlite.framework.spec import Lod


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


register_samples("linear_chain_crf", reference=_reference, samples=_samples)


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


register_samples("crf_decoding", reference=_reference_decoding, samples=_samples_decoding)
