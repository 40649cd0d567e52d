"""softmax and log_softmax over one axis."""

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

_ATTRS = (Attr("axis", "int", -1, doc="the axis whose elements sum to 1; negative ones count from the end"),)


def _check(call: Call, slot: str) -> None:
    """Raise unless ``axis`` is an axis of the slot."""
    rank = len(call.dims(slot))
    call.need(rank >= 1, slot, "rank 1 or more")
    normal_axis(call, "axis", call.attr("axis"), rank, slot)


def _infer(call: Call) -> Inferred:
    _check(call, "X")
    return {"Out": like(call.spec("X"))}


def _infer_grad(call: Call) -> Inferred:
    _check(call, "Out")
    return {"X@GRAD": like(call.spec("Out"))}


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, axis = inputs["X"], attrs["axis"]
    if not x.size:
        return {"Out": x}
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return {"Out": e / np.sum(e, axis=axis, keepdims=True)}


def _reference_log(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, axis = inputs["X"], attrs["axis"]
    return {"Out": x - np.logaddexp.reduce(x, axis=axis, keepdims=True)}


def _samples() -> list[Sample]:
    return [
        Sample({"X": rand(5, 7, low=-3, high=3)}, {}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4)}, {"axis": 2}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(6)}, {}, ("X",), name="vector"),
        Sample({"X": rand(3, 1)}, {}, name="one_class"),
        Sample({"X": rand(4, 5, low=900, high=1000)}, {}, name="large"),
        Sample({"X": rand(4, 5, low=-1000, high=-900)}, {}, name="small"),
        Sample({"X": rand(3, 35, low=-80, high=80)}, {}, name="wide", dtypes=("float32", "float16")),
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


for _name, _function, _doc, _grad_doc, _source in (
    (
        "softmax", _reference, "Out = exp(X - max) / sum(exp(X - max)) over the axis",
        "X@GRAD = Out (Out@GRAD - sum(Out Out@GRAD) over the axis)", "Fluid softmax_op.cc",
    ),
    (
        "log_softmax", _reference_log, "Out = X - max - log(sum(exp(X - max))) over the axis",
        "X@GRAD = Out@GRAD - exp(Out) (sum(Out@GRAD) over the axis)", "Fluid log_softmax_op.cc",
    ),
):  # fmt: skip
    register_op(
        _name,
        inputs=("X",),
        outputs=("Out",),
        attrs=_ATTRS,
        infer=_infer,
        grad=GradRule(_name + "_grad", ("Out", "Out@GRAD"), ("X",)),
        dtypes={"X": ALL_FLOATS},
        reference=_function,
        samples=_samples,
        doc=_doc,
        source=_source,
    )
    register_op(
        _name + "_grad",
        inputs=grad_inputs("Out", "Out@GRAD"),
        outputs=grad_outputs("X"),
        attrs=_ATTRS,
        infer=_infer_grad,
        doc=_grad_doc,
    )
