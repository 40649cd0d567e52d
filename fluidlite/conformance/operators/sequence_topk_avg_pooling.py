from __future__ import annotations

from itertools import pairwise

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Lods, Outputs
from fluidlite.conformance.samples import Sample, register_samples


def _samples() -> list[Sample]:
    rng = np.random.default_rng(2)
    rows, columns, channels = [2, 0, 3], [4, 2, 1], 2
    sizes = [channels * a * b for a, b in zip(rows, columns, strict=True)]
    x = (rng.permutation(sum(sizes)) / 7.0 - 1).reshape(-1, 1)  # without ties
    named = (("X", sizes), ("ROW", rows), ("COLUMN", columns))
    lod = {name: (tuple(np.cumsum([0, *of]).tolist()),) for name, of in named}
    inputs = {"X": x, "ROW": np.zeros((5, 1), "float32"), "COLUMN": np.zeros((7, 1), "float32")}
    return [Sample(inputs, {"topks": [1, 3], "channel_num": channels}, ("X",), lod, "ragged", WIDE)]


@register_samples("sequence_topk_avg_pooling", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    x, topks, channels = inputs["X"].reshape(-1), attrs["topks"], attrs["channel_num"]
    out, pos = [], []
    pairs = [list(pairwise(lod[slot][0])) for slot in ("X", "ROW", "COLUMN")]
    for (begin, _), (top, bottom), (left, right) in zip(*pairs, strict=True):
        for row in range(bottom - top):
            averages: list[float] = []
            for channel in range(channels):
                start = begin + (channel * (bottom - top) + row) * (right - left)
                places = sorted(range(start, start + right - left), key=lambda at: (-x[at], at))
                averages += [sum(x[at] for at in places[:k]) / k for k in topks]
                pos += (places + [-1] * topks[-1])[: topks[-1]]
            out.append(averages)
    return {"Out": np.array(out, np.float64).reshape(-1, channels * len(topks)), "pos": np.array(pos, "int32")}
