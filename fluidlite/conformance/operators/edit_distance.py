from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import Attrs, Inputs, Lods, Outputs, ints, sequences
from fluidlite.conformance.samples import Sample, register_samples


def enumerated(a: Any, b: Any) -> int:
    """The minimum cost over all alignments of two sequences."""
    costs = (
        len(a) + len(b) - 2 * k + sum(x != y for x, y in zip(left, right, strict=True))
        for k in range(min(len(a), len(b)) + 1)
        for left in combinations(a, k)
        for right in combinations(b, k)
    )
    return int(min(costs))


def _samples() -> list[Sample]:
    def ragged(name: str, hyps: tuple[int, ...], refs: tuple[int, ...], normalized: bool, dtype: str) -> Sample:
        inputs = {
            "Hyps": ints(hyps[-1], 1, high=4, dtype=dtype),
            "Refs": ints(refs[-1], 1, high=4, seed=1, dtype=dtype),
        }
        return Sample(
            inputs, {"normalized": normalized}, lod={"Hyps": (hyps,), "Refs": (refs,)}, name=name, dtypes=(dtype,)
        )

    padded = {"Hyps": ints(3, 5, high=3), "Refs": ints(3, 4, high=3, seed=1)}
    padded |= {"HypsLength": np.array([5, 0, 3]), "RefsLength": np.array([4, 2, 1])}
    return [
        ragged("sequences", (0, 5, 6, 10), (0, 3, 7, 8), True, "int64"),
        ragged("empty_sequences", (0, 0, 0, 2), (0, 3, 3, 3), False, "int32"),
        Sample(padded, {"normalized": True}, name="padded", dtypes=("int64",)),
    ]


@register_samples("edit_distance", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    both = (sequences(inputs[slot], inputs.get(f"{slot}Length"), lod.get(slot, ())) for slot in ("Hyps", "Refs"))
    pairs = list(zip(*both, strict=True))
    if attrs["normalized"] and not all(b for _, b in pairs):
        raise ValueError("no reference")
    out = [[enumerated(a, b) / (len(b) if attrs["normalized"] else 1)] for a, b in pairs]
    return {"SequenceNum": np.array([len(pairs)]), "Out": np.asarray(out, "float64").reshape(-1, 1)}
