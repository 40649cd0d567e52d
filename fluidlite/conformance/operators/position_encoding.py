from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "add_position_encoding",
    samples=lambda: [
        Sample({"X": rand(2, 4, 6)}, {}, ("X",), name="batch", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4)}, {"alpha": 0.5}, ("X",), name="alpha", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4)}, {"beta": 2.5}, ("X",), name="beta"),
        Sample({"X": rand(1, 5, 2)}, {}, ("X",), name="narrow"),
        Sample({"X": rand(6, 4)}, {"alpha": 2.0}, ("X",), lod={"X": ((0, 2, 2, 6),)}, name="sequences", dtypes=WIDE),
        Sample({"X": rand(0, 4, 6)}, {}, name="empty"),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs, lod: Mapping[str, Any]) -> Outputs:
    out = inputs["X"] * attrs["alpha"]
    starts = lod["X"][0] if lod.get("X") else ()
    sequences = [out[a:b] for a, b in pairwise(starts)] if starts else list(out)
    half = out.shape[-1] // 2
    for sequence in sequences:  # views of out
        for j, row in enumerate(sequence):
            for k in range(half):
                angle = j / 10000.0 ** (k / (half - 1)) if half > 1 else j / 10000.0
                row[k] += np.sin(angle) * attrs["beta"]
                row[half + k] += np.cos(angle) * attrs["beta"]
    return {"Out": out}
