from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import Attrs, Inputs, Lods, Outputs
from fluidlite.conformance.samples import Sample, register_samples

END = 1


def selected(inputs: Inputs, attrs: Attrs, offsets: Any) -> list[tuple[int, int, float]]:
    """Prefix, word and score of each selection of one step, by sorting a list of all candidates."""
    scores, end = inputs["scores"], attrs["end_id"]
    rows: list[tuple[int, int, float]] = []
    for begin, stop in pairwise(offsets):
        candidates = []
        for row in range(begin, stop):
            before = float(inputs["pre_scores"].reshape(-1)[row])
            if inputs["pre_ids"].reshape(-1)[row] == end:
                candidates.append((-before, -row, 0, row, end, before))
                continue
            for k, score in enumerate(scores.reshape(len(scores), -1)[row].tolist()):
                word = inputs["ids"].reshape(len(scores), -1)[row, k].item() if "ids" in inputs else k
                whole = score if attrs["is_accumulated"] else before + (math.log(score) if score else -math.inf)
                candidates.append((-whole, -row, k, row, word, whole))
        best = [each[3:] for each in sorted(candidates)[: attrs["beam_size"]]]
        if any(word != end or inputs["pre_ids"].reshape(-1)[row] != end for row, word, _ in best):
            rows += sorted(best, key=lambda each: each[0])
    return rows


def _samples() -> list[Sample]:
    rng = np.random.default_rng(14)
    two = {"scores": ((0, 2, 5), (0, 2, 3, 3, 4, 6))}
    inputs = {
        "pre_ids": np.array([[3], [END], [2], [5], [END], [4]]),
        "pre_scores": rng.normal(size=(6, 1)) - 1,
        "ids": rng.integers(0, 9, (6, 4)),
        "scores": rng.normal(size=(6, 4)) - 2,
    }
    chances = rng.dirichlet(np.ones(7), 3)
    chances[1, 2] = 0
    steps = {"pre_ids": np.array([0, 0, 3], "int32"), "pre_scores": np.array([-1.0, -2.0, -0.5]), "scores": chances}
    ended = {
        "pre_ids": np.array([[END], [END], [0]]),
        "pre_scores": np.array([[-1.0], [-2.0], [-3.0]]),
        "ids": np.array([[4], [5], [6]]),
        "scores": np.array([[-4.0], [-5.0], [-6.0]]),
    }
    attrs = {"beam_size": 3, "end_id": END}
    return [
        Sample(inputs, attrs, lod=two, name="two_levels"),
        Sample(inputs, {**attrs, "beam_size": 1, "level": 1}, lod=two, name="lower_level"),
        Sample(steps, {**attrs, "is_accumulated": False}, lod={"scores": ((0, 3),)}, name="chances"),
        Sample(ended, attrs, lod={"scores": ((0, 2, 3),)}, name="ended"),
        Sample(
            {**ended, "scores": np.array([[-4.0], [-5.0], [-np.inf]]), "pre_ids": np.array([[END]] * 3)},
            attrs,
            lod={"scores": ((0, 2, 3),)},
            name="all_ended",
        ),
    ]


@register_samples("beam_search", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    offsets = np.array(lod["scores"][attrs["level"]])
    for level in lod["scores"][attrs["level"] + 1 :]:
        offsets = np.array(level)[offsets]
    rows = selected(inputs, attrs, offsets.tolist())
    return {
        "selected_ids": np.array([each[1] for each in rows], inputs["pre_ids"].dtype).reshape(-1, 1),
        "selected_scores": np.array([each[2] for each in rows], np.float64).reshape(-1, 1),
        "parent_idx": np.array([each[0] for each in rows], "int32"),
    }
