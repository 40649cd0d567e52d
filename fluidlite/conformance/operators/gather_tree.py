from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import Attrs, Inputs, Outputs, ints
from fluidlite.conformance.samples import Sample, register_samples


def _tree(*dims: int, dtype: str = "int64") -> dict[str, Any]:
    return {"Ids": ints(*dims, high=100, dtype=dtype), "Parents": ints(*dims, high=dims[2] or 1, seed=1, dtype=dtype)}


@register_samples(
    "gather_tree",
    samples=lambda: [
        Sample(_tree(5, 2, 3), {}, name="int64", dtypes=("int64",)),
        Sample(_tree(3, 4, 2, dtype="int32"), {}, name="int32", dtypes=("int32",)),
        Sample(_tree(1, 2, 3), {}, name="one_step", dtypes=("int64",)),
        Sample(_tree(4, 3, 1), {}, name="one_beam", dtypes=("int64",)),
        Sample(_tree(20, 7, 30), {}, name="many", dtypes=("int64",)),
        Sample(_tree(0, 2, 3), {}, name="no_steps", dtypes=("int64",)),
        Sample(_tree(3, 0, 3), {}, name="no_samples", dtypes=("int64",)),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    ids, parents = inputs["Ids"], inputs["Parents"]
    out = np.zeros_like(ids)
    for sample, beam in np.ndindex(*ids.shape[1:]):
        at = beam
        for step in reversed(range(ids.shape[0])):
            out[step, sample, beam] = ids[step, sample, at]
            at = parents[step, sample, at]
    return {"Out": out}
