"""softmax over one axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, grad_inputs, grad_outputs, like, normal_axis
from fluidlite.operators.samples import EVERY, WIDE, rand

_ATTRS = (Attr("axis", "int", -1, doc="the axis whose elements sum to 1; as yet only the last"),)


def last_axis(call: Call, slot: str) -> None:
    """Raise unless ``axis`` is the last axis of the slot."""
    rank = len(call.dims(slot))
    call.need(rank >= 1, slot, "rank 1 or more")
    if normal_axis(call, "axis", call.attr("axis"), rank, slot) != rank - 1:
        call.fail_attr("axis", f"the last axis of {slot}, -1 or {rank - 1}", do="use layers.transpose before and after")


def _infer(call: Call) -> Inferred:
    last_axis(call, "X")
    return {"Out": like(call.spec("X"))}


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return {"Out": e / np.sum(e, axis=-1, keepdims=True)}


register_op(
    "softmax",
    inputs=("X",),
    outputs=("Out",),
    attrs=_ATTRS,
    infer=_infer,
    grad=GradRule("softmax_grad", ("Out", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL_FLOATS},
    reference=_reference,
    samples=lambda: [
        Sample({"X": rand(5, 7, low=-3, high=3)}, {}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4)}, {"axis": 2}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(6)}, {}, ("X",), name="vector"),
        Sample({"X": rand(3, 1)}, {}, name="one_class"),
        Sample({"X": rand(4, 5, low=900, high=1000)}, {}, name="large"),
        Sample({"X": rand(4, 5, low=-1000, high=-900)}, {}, name="small"),
        Sample({"X": rand(3, 35, low=-80, high=80)}, {}, name="wide", dtypes=("float32", "float16")),
        Sample({"X": rand(0, 3)}, {}, name="empty"),
    ],
    doc="Out = exp(X - max) / sum(exp(X - max)) over the last axis",
    source="Fluid softmax_op.cc",
)


def _infer_grad(call: Call) -> Inferred:
    return {"X@GRAD": like(call.spec("Out"))}


register_op(
    "softmax_grad",
    inputs=grad_inputs("Out", "Out@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_ATTRS,
    infer=_infer_grad,
    doc="X@GRAD = Out (Out@GRAD - sum(Out Out@GRAD) over the last axis)",
)
