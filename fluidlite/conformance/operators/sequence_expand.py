from __future__ import annotations

from itertools import pairwise

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Lods, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples

_ONE_LEVEL = {"X": ((0, 2, 2, 7),)}


def _reference_expand(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    x = inputs["X"]
    parts = [x[a:b] for a, b in pairwise(lod["X"][0])] if lod.get("X") else [x[i : i + 1] for i in range(len(x))]
    counts = [b - a for a, b in pairwise(lod["Y"][attrs.get("ref_level", -1)])]
    return {"Out": np.concatenate([x[:0], *(p for p, n in zip(parts, counts, strict=True) for _ in range(n))])}


register_samples(
    "sequence_expand",
    reference=_reference_expand,
    samples=lambda: [
        Sample(
            {"X": rand(4, 2), "Y": rand(5, 1)},
            {"ref_level": 0},
            ("X",),
            {"X": ((0, 2, 2, 4),), "Y": ((0, 2, 3, 6), (0, 1, 1, 2, 3, 3, 5))},
            name="sequences",
            dtypes=WIDE,
        ),
        Sample({"X": rand(3, 2), "Y": rand(5, 1)}, {}, ("X",), {"Y": ((0, 2, 2, 5),)}, name="rows"),
        Sample({"X": rand(1, 2, 2), "Y": rand(0, 1)}, {}, ("X",), {"Y": ((0, 0),)}, name="never"),
    ],
)
register_samples(
    "sequence_expand_as",
    reference=_reference_expand,
    samples=lambda: [
        Sample({"X": rand(3, 2), "Y": rand(5, 1)}, {}, ("X",), {"Y": ((0, 2, 2, 5),)}, name="rows", dtypes=WIDE),
        Sample({"X": rand(1, 2), "Y": rand(1, 1)}, {}, ("X",), {"Y": ((0, 1),)}, name="one"),
    ],
)


@register_samples(
    "sequence_reverse",
    samples=lambda: [
        Sample({"X": rand(7, 2)}, {}, ("X",), _ONE_LEVEL, name="sequences", dtypes=WIDE),
        Sample({"X": rand(7)}, {}, ("X",), {"X": ((0, 1, 3), (0, 3, 3, 7))}, name="two_levels"),
    ],
)
def _reference_reverse(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    return {"Y": np.concatenate([inputs["X"][a:b][::-1] for a, b in pairwise(lod["X"][-1])])}
