from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples

_UPSCALE = "upscale_in_train"


def _sample(name: str, dims: tuple[int, ...], dtypes: tuple[str, ...] = ("float32",), **attrs: Any) -> Sample:
    return Sample({"X": rand(*dims)}, attrs, ("X",) if 0 not in dims else (), name=name, dtypes=dtypes)


@register_samples(
    "dropout",
    samples=lambda: [
        _sample("test", (5, 7), EVERY, dropout_prob=0.3, is_test=True),
        _sample("test_default", (5, 7), is_test=True),
        _sample("test_upscale", (5, 7), EVERY, is_test=True, dropout_implementation=_UPSCALE),
        _sample("keep_all", (5, 7), WIDE, dropout_prob=0.0),
        _sample("keep_all_upscale", (5, 7), dropout_prob=0.0, dropout_implementation=_UPSCALE),
        _sample("drop_all", (5, 7), dropout_prob=1.0),
        _sample("drop_all_upscale", (5, 7), dropout_prob=1.0, dropout_implementation=_UPSCALE),
        Sample({"X": rand(5, 7), "Seed": np.array([5], "int32")}, {"dropout_prob": 0.0}, ("X",), name="seed_tensor"),
        _sample("empty", (0, 3), dropout_prob=0.0),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    """Only for deterministic cases: at test, and with probabilities 0 and 1."""
    x, p = inputs["X"], attrs["dropout_prob"]
    upscale = attrs["dropout_implementation"] == _UPSCALE
    if attrs["is_test"]:
        return {"Out": x if upscale else x * (1 - p), "Mask": np.ones(x.shape, "uint8")}
    if p not in (0.0, 1.0):
        raise ValueError("dropout's reference is for what is not random")
    return {"Out": x * (1 - p), "Mask": np.full(x.shape, 1 - p, "uint8")}
