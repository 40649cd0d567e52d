from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import Attrs, Inputs, Lods, Outputs
from fluidlite.conformance.samples import Sample, register_samples


def _samples() -> list[Sample]:
    def ragged(name: str, path: list[int], offsets: tuple[int, ...], dtype: str = "int64", **attrs: Any) -> Sample:
        x = np.array(path, dtype).reshape(-1, 1)
        return Sample({"Input": x, "Values": x}, attrs, lod={"Input": (offsets,)}, name=name, dtypes=(dtype,))

    padded = {"Input": np.array([[0, 1, 1, 0, 1], [2, 2, 0, 0, 3], [1, 1, 1, 1, 1]], "int32")}
    padded["InputLength"] = np.array([[5], [3], [0]])
    return [
        ragged("paths", [0, 1, 1, 0, 1, 2, 2, 2, 0, 0], (0, 6, 6, 10)),
        ragged("repeated", [3, 3, 1, 1, 3, 0], (0, 4, 6), "int32", blank=3, merge_repeated=False),
        ragged("no_labels", [0, 0], (0, 1, 2)),
        Sample(padded, {"padding_value": -1}, name="padded", dtypes=("int32",)),
    ]


@register_samples("ctc_align", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    x = inputs["Input"]
    if "InputLength" in inputs:
        paths = [row[:n].tolist() for row, n in zip(x, inputs["InputLength"].reshape(-1), strict=True)]
    else:
        paths = [x[a:b, 0].tolist() for a, b in pairwise(lod["Input"][0])]
    if attrs["merge_repeated"]:
        paths = [[token for token, _ in groupby(path)] for path in paths]
    labels = [[token for token in path if token != attrs["blank"]] for path in paths]
    lengths = np.array([[len(row)] for row in labels], x.dtype)
    if "InputLength" in inputs:
        out = [row + [attrs["padding_value"]] * (x.shape[1] - len(row)) for row in labels]
        return {"Output": np.array(out, x.dtype), "OutputLength": lengths}
    return {"Output": np.array([[t] for row in labels for t in row], x.dtype).reshape(-1, 1), "OutputLength": lengths}
