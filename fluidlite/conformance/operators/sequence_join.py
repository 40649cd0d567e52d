from __future__ import annotations

from itertools import pairwise

import numpy as np

from fluidlite.conformance.sample_helpers import MIXED, Attrs, Inputs, Lods, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "sequence_concat",
    samples=lambda: [
        Sample({"X": [rand(5, 2), rand(5, 2, seed=1)]}, {}, ("X",), {"X": ((0, 2, 2, 5),)}, name="two"),
        Sample({"X": [rand(3, 1)]}, {}, ("X",), {"X": ((0, 3),)}, name="one"),
    ],
)
def _reference_concat(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    parts = [x[a:b] for a, b in pairwise(lod["X"][0]) for x in inputs["X"]]
    return {"Out": np.concatenate(parts)}


@register_samples(
    "sequence_slice",
    samples=lambda: [
        Sample(
            {"X": rand(7, 2), "Offset": np.array([[1], [0], [2]]), "Length": np.array([[1], [0], [3]])},
            {},
            ("X",),
            {"X": ((0, 2, 2, 7),)},
            name="parts",
            dtypes=MIXED,
        ),
    ],
)
def _reference_slice(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    x, begins, lengths = inputs["X"], inputs["Offset"].reshape(-1), inputs["Length"].reshape(-1)
    starts = lod["X"][0][:-1]
    return {"Out": np.concatenate([x[s + o : s + o + n] for s, o, n in zip(starts, begins, lengths, strict=True)])}


_IDS = {"Ids": ((0, 3, 3, 5),), "Updates": ((0, 3, 3, 5),)}


@register_samples(
    "sequence_scatter",
    samples=lambda: [
        Sample(
            {"X": rand(3, 4), "Ids": np.array([[1], [3], [1], [0], [2]]), "Updates": rand(5, 1, seed=1)},
            {},
            ("X", "Updates"),
            _IDS,
            name="rows",
            dtypes=MIXED,
        ),
    ],
)
def _reference_scatter(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    out = inputs["X"].copy()
    for row, (a, b) in zip(out, pairwise(lod["Ids"][0]), strict=True):
        for r in range(a, b):
            row[inputs["Ids"][r, 0]] += inputs["Updates"][r, 0]
    return {"Out": out}
