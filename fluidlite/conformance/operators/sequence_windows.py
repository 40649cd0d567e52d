from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Lods, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples

_ONE_LEVEL, _TWO_LEVELS = {"X": ((0, 2, 2, 7),)}, {"X": ((0, 1, 2), (0, 3, 7))}


def _conv(name: str, lod: Any, length: int, start: int, width: int, dtypes: tuple[str, ...] = ("float32",)) -> Sample:
    inputs = {"X": rand(7, 2), "Filter": rand(2 * length, width, seed=1)}
    return Sample(inputs, {"contextLength": length, "contextStart": start}, ("X", "Filter"), lod, name, dtypes)


@register_samples(
    "sequence_conv",
    samples=lambda: [_conv("around", _ONE_LEVEL, 3, -1, 3, WIDE), _conv("ahead", _TWO_LEVELS, 2, 1, 1)],
)
def _reference_conv(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    x, rows = inputs["X"], []
    for a, b in pairwise(lod["X"][-1]):
        for t in range(a, b):
            steps = [t + attrs["contextStart"] + k for k in range(attrs["contextLength"])]
            rows.append(np.concatenate([x[s] if a <= s < b else np.zeros(x.shape[1]) for s in steps]))
    return {"Out": np.asarray(rows) @ inputs["Filter"]}


@register_samples(
    "sequence_enumerate",
    samples=lambda: [
        Sample({"X": ints(7, 1)}, {"win_size": 3, "pad_value": -4}, lod=_ONE_LEVEL, name="words", dtypes=("int64",)),
        Sample({"X": ints(7, dtype="int32")}, {"win_size": 2}, lod=_TWO_LEVELS, name="two_levels", dtypes=("int32",)),
    ],
)
def _reference_windows(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    x, rows = inputs["X"].reshape(-1), []
    for a, b in pairwise(lod["X"][-1]):
        for t in range(a, b):
            rows.append([x[s] if s < b else attrs["pad_value"] for s in range(t, t + attrs["win_size"])])
    return {"Out": np.asarray(rows, inputs["X"].dtype)}
