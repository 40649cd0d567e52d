"""Further losses of classifiers: bpr_loss, cross_entropy2, center_loss."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import (
    Inferred,
    agree,
    all_agree,
    grad_inputs,
    grad_like,
    grad_outputs,
    like,
    same_dtype,
)
from fluidlite.operators.loss import check_label
from fluidlite.operators.samples import EVERY, WIDE, ints, rand

# bpr_loss ----------------------------------------------------------------------------------------------------------


def _infer_bpr(call: Call) -> Inferred:
    dims = check_label(call, "X", soft=False)
    classes = call.dims("X")[-1]
    call.need(classes < 0 or classes >= 2, "X", "[..., classes], 2 classes or more")
    return {"Y": like(call.spec("X"), dims)}


def _reference_bpr(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, label = inputs["X"], inputs["Label"]
    classes = x.shape[-1]
    rows = zip(x.reshape(prod(x.shape[:-1]), classes), label.reshape(-1), strict=True)
    losses = [np.mean(np.logaddexp(0, np.delete(row, c) - row[c])) for row, c in rows]
    return {"Y": np.asarray(losses, "float64").reshape(label.shape)}


register_op(
    "bpr_loss",
    inputs=("X", "Label"),
    outputs=("Y",),
    infer=_infer_bpr,
    grad=GradRule("bpr_loss_grad", ("X", "Label", "Y@GRAD"), ("X",)),
    dtypes={"X": ALL_FLOATS, "Label": INTS},
    reference=_reference_bpr,
    samples=lambda: [
        Sample({"X": rand(5, 4, low=-3, high=3), "Label": ints(5, 1, high=4)}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(5, 2), "Label": ints(5, 1, high=2, dtype="int32")}, {}, ("X",), name="pairs_int32"),
        Sample({"X": rand(2, 3, 6), "Label": ints(2, 3, 1, high=6)}, {}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": rand(3, 40, low=-300, high=300), "Label": ints(3, 1, high=40)}, {}, name="far"),
        Sample({"X": rand(300, 300), "Label": ints(300, 1, high=300)}, {}, name="large"),
        Sample({"X": rand(0, 4), "Label": ints(0, 1)}, {}, name="empty"),
    ],
    doc="Y = the mean of ln(1 + exp(X[j] - X[Label])) over the classes j that are not Label",
    source="Fluid bpr_loss_op.cc",
)

register_op(
    "bpr_loss_grad",
    inputs=grad_inputs("X", "Label", "Y@GRAD"),
    outputs=grad_outputs("X"),
    infer=grad_like("X"),
    doc="X@GRAD[j] = Y@GRAD / (1 + exp(X[Label] - X[j])) / (classes - 1); at Label less the sum of these",
)

# cross_entropy2 ----------------------------------------------------------------------------------------------------

_IGNORE = (Attr("ignore_index", "int", -100, doc="rows of this class cost 0"),)


def _infer_two(call: Call) -> Inferred:
    x = call.spec("X")
    dims = check_label(call, "X", soft=False, short=True)
    return {"Y": like(x, dims), "MatchX": Spec.of((*x.dims[:-1], 1), x.dtype), "XShape": like(x, (*x.dims, 0))}


def _reference_two(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, label = inputs["X"], inputs["Label"]
    table = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    match = [0.0 if c == attrs["ignore_index"] else table[i, c] for i, c in enumerate(label.reshape(-1))]
    with np.errstate(divide="ignore"):
        cost = np.minimum(-np.log(np.asarray(match, "float64")), 1e20)
    cost[label.reshape(-1) == attrs["ignore_index"]] = 0
    return {
        "Y": cost.reshape(label.shape),
        "MatchX": np.asarray(match, "float64").reshape(*x.shape[:-1], 1),
        "XShape": np.zeros((*x.shape, 0)),
    }


def _samples_two() -> list[Sample]:
    def p(*dims: int) -> Any:
        return rand(*dims, low=0.1, high=0.9)

    certain = np.asarray([[0, 1], [1, 0]], "float32")
    return [
        Sample({"X": p(5, 4), "Label": ints(5, 1, high=4)}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": p(5, 4), "Label": np.array([[1], [-100], [3], [0], [-100]])}, {}, ("X",), name="ignored"),
        Sample({"X": p(5, 4), "Label": ints(5, 1, high=4)}, {"ignore_index": 2}, ("X",), name="ignore_index"),
        Sample({"X": p(2, 3, 4), "Label": ints(2, 3, high=4, dtype="int32")}, {}, ("X",), name="short_int32"),
        Sample({"X": certain, "Label": ints(2, 1, high=1)}, {}, name="zero_probability"),
        Sample({"X": p(0, 4), "Label": ints(0, 1)}, {}, name="empty"),
    ]


register_op(
    "cross_entropy2",
    inputs=("X", "Label"),
    outputs=(
        "Y",
        Slot("XShape", dispensable=True, intermediate=True, content="dims (*dims of X, 0) and X's LoD; no bytes"),
        Slot("MatchX", dispensable=True, intermediate=True, content="X[Label], 0 in ignored rows"),
    ),
    attrs=_IGNORE,
    infer=_infer_two,
    grad=GradRule("cross_entropy_grad2", ("Label", "MatchX", "XShape", "Y@GRAD"), ("X",)),
    dtypes={"X": ALL_FLOATS, "Label": INTS},
    reference=_reference_two,
    samples=_samples_two,
    doc="Y = -ln(X[Label]), 0 in ignored rows; -ln(0) counts as 1e20",
    source="Fluid cross_entropy_op.cc",
)


def _infer_two_grad(call: Call) -> Inferred:
    return {"X@GRAD": like(call.spec("XShape"), call.dims("XShape")[:-1])}


register_op(
    "cross_entropy_grad2",
    inputs=grad_inputs("Label", "MatchX", "XShape", "Y@GRAD", meta=("XShape",)),
    outputs=grad_outputs("X"),
    attrs=_IGNORE,
    infer=_infer_two_grad,
    kernel_dtype="Y@GRAD",
    doc="X@GRAD = -Y@GRAD / MatchX at Label, 0 elsewhere and in ignored rows",
    source="Fluid cross_entropy_op.cc",
)

# center_loss -------------------------------------------------------------------------------------------------------

_CENTER_ATTRS = (
    Attr("cluster_num", "int", minimum=1, doc="how many classes, and so rows of Centers"),
    Attr("need_update", "bool", doc="move the centers"),
)


def _infer_center(call: Call) -> Inferred:
    x, centers, label = call.spec("X"), call.spec("Centers"), call.dims("Label")
    call.need(x.rank == 2, "X", "[rows, width]")
    for slot in ("Centers", "CenterUpdateRate"):
        same_dtype(call, slot, "X")
    fits = centers.rank == 2 and agree(centers.dims[0], call.attr("cluster_num")) and agree(centers.dims[1], x.dims[1])
    call.need(fits, "Centers", f"[{call.attr('cluster_num')}, {x.dims[1]}], cluster_num rows as wide as X")
    column = len(label) == 1 or (len(label) == 2 and agree(label[1], 1))
    call.need(column and agree(label[0], x.dims[0]), "Label", f"[{x.dims[0]}, 1], a class for each row of X")
    call.need(all_agree(call.dims("CenterUpdateRate"), (1,)), "CenterUpdateRate", "[1]")
    return {
        "CentersOut": like(centers),
        "SampleCenterDiff": Spec.of(x.dims, x.dtype),
        "Loss": like(x, (x.dims[0], 1)),
    }


def _decompose_center(call: Call, build: Any) -> None:
    x, label, centers = build.input("X"), build.input("Label"), build.input("Centers")
    near = build("gather", {"X": centers, "Index": label}, {"Out": build.temp()})
    keep = build.output("SampleCenterDiff") if call.has("SampleCenterDiff") else build.temp()
    diff = build("elementwise_sub", {"X": x, "Y": near}, {"Out": keep})
    if call.has("Loss"):
        squares = build("square", {"X": diff}, {"Out": build.temp()})
        total = build("reduce_sum", {"X": squares}, {"Out": build.temp()}, {"dim": [1], "keep_dim": True})
        build("scale", {"X": total}, {"Out": build.output("Loss")}, {"scale": 0.5})
    if not call.has("CentersOut"):
        return
    if not call.attr("need_update"):
        build("assign", {"X": centers}, {"Out": build.output("CentersOut")})
        return
    dtype, (classes, _) = call.dtype("X"), call.dims("Centers")
    ones = build("fill_constant", {}, {"Out": build.temp()}, {"shape": [call.dims("X")[0], 1], "value": 1.0,
                                                              "dtype": dtype})  # fmt: skip
    first = build("fill_constant", {}, {"Out": build.temp()}, {"shape": [classes, 1], "value": 1.0, "dtype": dtype})
    # the gradients of gather add rows that have one index
    count = build("gather_grad", {"X": first, "Index": label, "Out@GRAD": ones}, {"X@GRAD": build.temp()})
    count = build("elementwise_add", {"X": count, "Y": first}, {"Out": build.temp()})
    move = build("gather_grad", {"X": centers, "Index": label, "Out@GRAD": diff}, {"X@GRAD": build.temp()})
    move = build("elementwise_div", {"X": move, "Y": count}, {"Out": build.temp()})
    move = build("elementwise_mul", {"X": move, "Y": build.input("CenterUpdateRate")}, {"Out": build.temp()})
    build("elementwise_add", {"X": centers, "Y": move}, {"Out": build.output("CentersOut")})


def _reference_center(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    label, centers = inputs["Label"].reshape(-1), inputs["Centers"].copy()
    diff = inputs["X"] - centers[label]
    if attrs["need_update"]:
        for c in range(len(centers)):
            centers[c] += inputs["CenterUpdateRate"][0] * diff[label == c].sum(0) / (1 + (label == c).sum())
    return {"CentersOut": centers, "SampleCenterDiff": diff, "Loss": (diff**2).sum(1, keepdims=True) / 2}


def _samples_center() -> list[Sample]:
    def inputs(rows: int, **label: Any) -> dict[str, Any]:
        return {
            "X": rand(rows, 3), "Label": ints(rows, 1, high=4, seed=2, **label), "Centers": rand(5, 3, seed=1),
            "CenterUpdateRate": np.asarray([0.1], "float32"),
        }  # fmt: skip

    attrs = {"cluster_num": 5, "need_update": True}
    return [
        Sample(inputs(7), attrs, ("X",), name="update", dtypes=WIDE),
        Sample(inputs(7, dtype="int32"), attrs, name="int32"),
        Sample(inputs(7), {**attrs, "need_update": False}, ("X",), name="fixed"),
        Sample(inputs(0), attrs, name="empty"),
    ]


register_op(
    "center_loss",
    inputs=("X", "Label", "Centers", Slot("CenterUpdateRate", doc="the rate, [1]")),
    outputs=("CentersOut", Slot("SampleCenterDiff", intermediate=True, content="X - Centers[Label]"), "Loss"),
    attrs=_CENTER_ATTRS,
    infer=_infer_center,
    grad=GradRule("center_loss_grad", ("SampleCenterDiff", "Loss@GRAD"), ("X",)),
    decompose=_decompose_center,
    dtypes={"X": ALL_FLOATS, "Label": INTS, "Centers": ALL_FLOATS, "CenterUpdateRate": ALL_FLOATS},
    reference=_reference_center,
    samples=_samples_center,
    doc="D = X - Centers[Label]; Loss = the sum of each row's D^2 / 2; CentersOut = Centers + rate times the sum of a "
    "class's D / (1 + its rows)",
    source="Fluid center_loss_op.cc",
)


def _infer_center_grad(call: Call) -> Inferred:
    return {"X@GRAD": like(call.spec("SampleCenterDiff"))}


def _decompose_center_grad(call: Call, build: Any) -> None:
    inputs = {"X": build.input("SampleCenterDiff"), "Y": build.input("Loss@GRAD")}
    build("elementwise_mul", inputs, {"Out": build.output("X@GRAD")})


register_op(
    "center_loss_grad",
    inputs=grad_inputs("SampleCenterDiff", "Loss@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_CENTER_ATTRS,
    infer=_infer_center_grad,
    decompose=_decompose_center_grad,
    doc="X@GRAD = SampleCenterDiff Loss@GRAD",
)
