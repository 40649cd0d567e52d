from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Lods, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples
from fluidlite.tensor.tensor_spec import Lod


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


def _unpadded(reference: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Extend a reference to padded sequences: it is called for each of them as one sequence with LoD."""

    def of_both(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
        if "Length" not in inputs:
            return reference(inputs, attrs, lod)
        x, results = inputs["Emission"], []
        for i, n in enumerate(inputs["Length"].reshape(-1).tolist()):
            one = {"Emission": x[i, :n], "Transition": inputs["Transition"]}
            if "Label" in inputs:
                one["Label"] = inputs["Label"][i, :n].reshape(-1, 1)
            results.append(reference(one, attrs, {"Emission": ((0, n),)}))
        out = {"TransitionExps": results[0]["TransitionExps"]} if "TransitionExps" in results[0] else {}
        for slot in results[0].keys() - out.keys():
            steps = [each[slot] for each in results]
            if slot == "LogLikelihood":
                out[slot] = np.concatenate(steps)
            else:
                out[slot] = np.stack([np.pad(s, ((0, x.shape[1] - len(s)), (0, 0))) for s in steps])
        if "ViterbiPath" in out:
            out["ViterbiPath"] = out["ViterbiPath"][:, :, 0]
        return out

    return of_both


def _inputs(steps: int, tags: int) -> dict[str, Any]:
    return {
        "Emission": rand(steps, tags, low=-2, high=2),
        "Transition": rand(tags + 2, tags, seed=1),
        "Label": ints(steps, 1, high=tags, seed=2),
    }


def _padded(name: str, grads: tuple[str, ...] = (), label: bool = True) -> Sample:
    inputs = _inputs(12, 3)
    inputs["Emission"], inputs["Label"] = inputs["Emission"].reshape(3, 4, 3), inputs["Label"].reshape(3, 4)
    inputs["Label"][1, 3] = 7  # behind the end, so that it is ignored
    if not label:
        del inputs["Label"]
    return Sample({**inputs, "Length": np.array([[4], [1], [0]])}, {}, grads, name=name, dtypes=WIDE)


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
        _padded("padded", ("Emission", "Transition")),
    ]


@register_samples("linear_chain_crf", samples=_samples)
@_unpadded
def _reference(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
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


def _samples_decoding() -> list[Sample]:
    def case(name: str, tags: int, *offsets: int, label: bool = False) -> Sample:
        inputs = _inputs(offsets[-1], tags)
        if not label:
            del inputs["Label"]
        lod = {slot: (offsets,) for slot in inputs if slot != "Transition"}
        return Sample(inputs, {}, lod=lod, name=name, dtypes=WIDE)

    return [
        case("sequences", 3, 0, 3, 4, 8),
        case("with_label", 3, 0, 3, 4, 8, label=True),
        _padded("padded", label=False),
        _padded("padded_with_label"),
        case("one_step", 4, 0, 1),
        case("empty_sequence", 2, 0, 2, 2, 5),
    ]


@register_samples("crf_decoding", samples=_samples_decoding)
@_unpadded
def _reference_decoding(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    x, best = inputs["Emission"], np.zeros((len(inputs["Emission"]), 1), "int64")
    for begin, end in _sequences(lod["Emission"]):
        if end > begin:
            scores = _scores(x[begin:end], inputs["Transition"])
            best[begin:end, 0] = max(scores, key=lambda path: scores[path])
    if "Label" in inputs:
        best = np.asarray(best == inputs["Label"], "int64")
    return {"ViterbiPath": best}
