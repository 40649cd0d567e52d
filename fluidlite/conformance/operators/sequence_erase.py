from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import Attrs, Inputs, Outputs
from fluidlite.conformance.samples import Sample, register_samples


def _sample(name: str, x: Any, tokens: list[int], lod: tuple[int, ...]) -> Sample:
    return Sample({"X": x, "Values": x}, {"tokens": tokens}, lod={"X": (lod,)}, name=name, dtypes=(str(x.dtype),))


@register_samples(
    "sequence_erase",
    samples=lambda: [
        _sample("words", np.array([[2], [2], [6], [1], [3], [9], [6], [1]]), [2, 3, 5], (0, 3, 3, 8)),
        _sample("all", np.array([7, 7], "int32"), [7], (0, 1, 2)),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    return {"Out": x[[i for i in range(len(x)) if x.reshape(-1)[i] not in attrs["tokens"]]]}
