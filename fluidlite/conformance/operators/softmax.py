from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples

_SPREAD_LOGITS = np.asarray([[0, 100, -300], [-63, 0, -65], [3e4, -3e4, 2e4], [-64, 1, 64]], "float32")
"""Rows in which the least number is below the maximum by more than 64."""


def _samples() -> list[Sample]:
    return [
        Sample({"X": rand(5, 7, low=-3, high=3)}, {}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4)}, {"axis": 2}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(6)}, {}, ("X",), name="vector"),
        Sample({"X": rand(3, 1)}, {}, name="one_class"),
        Sample({"X": rand(4, 5, low=900, high=1000)}, {}, name="large"),
        Sample({"X": rand(4, 5, low=-1000, high=-900)}, {}, name="small"),
        Sample({"X": rand(3, 35, low=-80, high=80)}, {}, name="wide", dtypes=("float32", "float16")),
        Sample({"X": _SPREAD_LOGITS}, {}, name="far_apart", dtypes=EVERY),
        Sample({"X": np.ascontiguousarray(_SPREAD_LOGITS.T)}, {"axis": 0}, name="far_apart_columns", dtypes=EVERY),
        Sample({"X": rand(0, 3)}, {}, name="empty"),
        Sample({"X": rand(5, 4, low=-3, high=3)}, {"axis": 0}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(2, 5, 3)}, {"axis": -2}, ("X",), name="middle", dtypes=WIDE),
        Sample({"X": rand(2, 9, 37, low=-80, high=80)}, {"axis": 1}, name="wide_middle", dtypes=EVERY),
        Sample({"X": rand(3, 4, 2, 2)}, {"axis": 1}, ("X",), name="channels"),
        Sample({"X": rand(2, 1, 3)}, {"axis": 1}, ("X",), name="one_class_middle"),
        Sample({"X": rand(2, 0, 3)}, {"axis": 1}, name="no_classes"),
        Sample({"X": rand(2, 3, 19)}, {"axis": 1}, ("X",), name="tiles", dtypes=WIDE),
        Sample({"X": rand(3, 21)}, {}, ("X",), name="long", dtypes=WIDE),
    ]


@register_samples("softmax", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, axis = inputs["X"], attrs["axis"]
    if not x.size:
        return {"Out": x}
    e = np.exp(np.maximum(x - np.max(x, axis=axis, keepdims=True), -64))
    return {"Out": e / np.sum(e, axis=axis, keepdims=True)}


@register_samples("log_softmax", samples=_samples)
def _reference_log(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, axis = inputs["X"], attrs["axis"]
    return {"Out": x - np.logaddexp.reduce(x, axis=axis, keepdims=True)}
