from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _inputs(*dims: int) -> dict[str, Any]:
    return {"X": rand(*dims, low=0, high=9), "CVM": rand(dims[0], 2, low=0, high=5, seed=1)}


@register_samples(
    "cvm",
    samples=lambda: [
        Sample(_inputs(5, 7), {}, name="rows", dtypes=WIDE),
        Sample(_inputs(5, 7), {"use_cvm": False}, name="without", dtypes=WIDE),
        Sample(_inputs(3, 2), {}, name="only_two"),
        Sample(_inputs(3, 2), {"use_cvm": False}, name="nothing_left"),
        Sample(_inputs(0, 4), {}, name="no_rows"),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    show, click = np.log(x[:, :1] + 1), np.log(x[:, 1:2] + 1)
    return {"Y": np.concatenate([show, click - show, x[:, 2:]], axis=1) if attrs["use_cvm"] else x[:, 2:]}


@register_samples(
    "cvm_grad",
    samples=lambda: [
        Sample({**_inputs(5, 7), "Y@GRAD": rand(5, 7, seed=2)}, {}, name="rows", dtypes=WIDE),
        Sample({**_inputs(5, 7), "Y@GRAD": rand(5, 5, seed=2)}, {"use_cvm": False}, name="without", dtypes=WIDE),
        Sample({**_inputs(3, 2), "Y@GRAD": rand(3, 0, seed=2)}, {"use_cvm": False}, name="nothing_left"),
    ],
)
def _reference_grad(inputs: Inputs, attrs: Attrs) -> Outputs:
    rest = inputs["Y@GRAD"][:, 2:] if attrs["use_cvm"] else inputs["Y@GRAD"]
    return {"X@GRAD": np.concatenate([inputs["CVM"], rest], axis=1)}
