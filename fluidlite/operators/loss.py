"""Losses of classifiers: cross_entropy of probabilities, softmax_with_cross_entropy of logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, all_agree, grad_inputs, grad_like, grad_outputs, like, same_dtype
from fluidlite.operators.samples import WIDE, ints, rand
from fluidlite.operators.softmax import last_axis

_LABEL_ATTRS = (
    Attr("soft_label", "bool", False, doc="Label holds a probability for each class, not the class"),
    Attr("ignore_index", "int", -100, doc="rows of this class cost 0; of no effect on soft labels"),
)
_LABELS = (*INTS, *ALL_FLOATS)


def _check_label(call: Call, scores: str) -> None:
    """Raise unless Label suits the scores [..., classes]."""
    dims = call.dims(scores)
    call.need(len(dims) >= 2, scores, "[..., classes], rank 2 or more")
    if call.attr("soft_label"):
        same_dtype(call, "Label", scores)
        if not all_agree(call.dims("Label"), dims):
            call.fail("Label", f"{list(dims)}, as {scores}, since soft_label is True")
    else:
        if call.dtype("Label") not in INTS:
            call.fail_dtype("Label", INTS, do="use soft_label=True for labels that are probabilities")
        if not all_agree(call.dims("Label"), (*dims[:-1], 1)):
            call.fail("Label", f"{[*dims[:-1], 1]}, a class for each row of {scores}")


def _picked(table: Any, label: Any, ignore: int) -> Any:
    """Return table[..., label] with 0 for ignored labels."""
    flat = table.reshape(-1, table.shape[-1])
    out = [0.0 if c == ignore else flat[i, c] for i, c in enumerate(label.reshape(-1))]
    return np.asarray(out, "float64").reshape(label.shape)


def _one_hot(label: Any, classes: int, dtype: str = "float32") -> Any:
    return np.asarray(np.eye(classes)[label[..., 0]], dtype)


def _probabilities(*dims: int, seed: int = 0) -> Any:
    p = rand(*dims, low=0.2, high=1.0, seed=seed, dtype="float64")
    return np.asarray(p / p.sum(-1, keepdims=True), "float32")


# cross_entropy -----------------------------------------------------------------------------------------------------


def _infer_cross_entropy(call: Call) -> Inferred:
    _check_label(call, "X")
    return {"Y": like(call.spec("X"), (*call.dims("X")[:-1], 1))}


def _reference_cross_entropy(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    with np.errstate(divide="ignore"):
        cost = np.minimum(-np.log(inputs["X"]), 1e20)
    if attrs["soft_label"]:
        return {"Y": np.sum(inputs["Label"] * cost, axis=-1, keepdims=True)}
    return {"Y": _picked(cost, inputs["Label"], attrs["ignore_index"])}


def _samples_cross_entropy() -> list[Sample]:
    p = _probabilities(5, 4)
    certain = np.asarray([[0.0, 1.0], [1.0, 0.0]], "float32")
    label = ints(5, 1, high=4)
    ignored = label.copy()
    ignored[1] = ignored[3] = -100
    soft = {"X": p, "Label": _probabilities(5, 4, seed=1)}
    return [
        Sample({"X": p, "Label": label}, {}, ("X",), name="hard", dtypes=WIDE),
        Sample({"X": p, "Label": label.astype("int32")}, {}, ("X",), name="int32"),
        Sample({"X": p, "Label": ignored}, {}, ("X",), name="ignored"),
        Sample({"X": p, "Label": label}, {"ignore_index": int(label[0, 0])}, ("X",), name="ignore_index"),
        Sample(soft, {"soft_label": True}, ("X",), name="soft", dtypes=WIDE),
        Sample({"X": _probabilities(2, 3, 4), "Label": ints(2, 3, 1, high=4)}, {}, ("X",), name="rank3"),
        Sample({"X": certain, "Label": ints(2, 1, high=1)}, {}, name="zero_probability"),
        Sample({"X": rand(0, 4), "Label": ints(0, 1)}, {}, name="empty"),
    ]


register_op(
    "cross_entropy",
    inputs=("X", "Label"),
    outputs=("Y",),
    attrs=_LABEL_ATTRS,
    infer=_infer_cross_entropy,
    grad=GradRule("cross_entropy_grad", ("X", "Label", "Y@GRAD"), ("X",)),
    dtypes={"X": ALL_FLOATS, "Label": _LABELS},
    reference=_reference_cross_entropy,
    samples=_samples_cross_entropy,
    doc="Y = -log(X[Label]), or -sum(Label log(X)) if soft_label; -log(0) counts as 1e20",
    source="Fluid cross_entropy_op.cc",
)

register_op(
    "cross_entropy_grad",
    inputs=grad_inputs("X", "Label", "Y@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_LABEL_ATTRS,
    infer=grad_like("X"),
    doc="X@GRAD = -Y@GRAD / X at the label (0 elsewhere, and in ignored rows), or -Y@GRAD Label / X if soft_label",
)

# softmax_with_cross_entropy ----------------------------------------------------------------------------------------

_ATTRS = (
    *_LABEL_ATTRS,
    Attr("numeric_stable_mode", "bool", True, doc="taken for Fluid's sake; the stable formula is always used"),
    Attr("axis", "int", -1, doc="the axis of the classes; as yet only the last"),
)


def _infer_softmax(call: Call) -> Inferred:
    _check_label(call, "Logits")
    last_axis(call, "Logits")
    logits = call.spec("Logits")
    return {"Softmax": like(logits), "Loss": like(logits, (*logits.dims[:-1], 1))}


def _decompose_softmax(call: Call, build: Any) -> None:
    softmax = build.output("Softmax") if call.has("Softmax") else build.temp()
    build("softmax", {"X": build.input("Logits")}, {"Out": softmax}, {})
    build(
        "cross_entropy",
        {"X": softmax, "Label": build.input("Label")},
        {"Y": build.output("Loss")},
        {"soft_label": call.attr("soft_label"), "ignore_index": call.attr("ignore_index")},
    )


def _reference_softmax(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    logits = inputs["Logits"]
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    log_p = shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    if attrs["soft_label"]:
        loss = -np.sum(inputs["Label"] * log_p, axis=-1, keepdims=True)
    else:
        loss = -_picked(log_p, inputs["Label"], attrs["ignore_index"])
    return {"Softmax": np.exp(log_p), "Loss": loss}


def _samples_softmax() -> list[Sample]:
    x = rand(5, 4, low=-3.0, high=3.0)
    label = ints(5, 1, high=4)
    ignored = label.copy()
    ignored[0] = ignored[4] = -100
    soft = {"Logits": x, "Label": _probabilities(5, 4, seed=1)}
    wide = rand(3, 35, low=-80, high=80)
    one_hot = {"Logits": x, "Label": _one_hot(label, 4)}
    return [
        Sample({"Logits": x, "Label": label}, {}, ("Logits",), name="hard", dtypes=(*WIDE, "float16", "bfloat16")),
        Sample({"Logits": x, "Label": label.astype("int32")}, {}, ("Logits",), name="int32"),
        Sample({"Logits": x, "Label": ignored}, {}, ("Logits",), name="ignored"),
        Sample({"Logits": x, "Label": label}, {"ignore_index": int(label[0, 0])}, ("Logits",), name="ignore_index"),
        Sample(soft, {"soft_label": True}, ("Logits",), name="soft", dtypes=WIDE),
        Sample(one_hot, {"soft_label": True, "ignore_index": 1}, ("Logits",), name="one_hot"),
        Sample(
            {"Logits": rand(2, 3, 4), "Label": ints(2, 3, 1, high=4)},
            {"axis": 2, "numeric_stable_mode": False},
            ("Logits",),
            name="rank3",
        ),
        Sample({"Logits": rand(33, 65, low=90, high=99), "Label": ints(33, 1, high=65)}, {}, name="large"),
        Sample({"Logits": rand(5, 4, low=-999, high=-900), "Label": label}, {}, name="small"),
        Sample({"Logits": wide, "Label": ints(3, 1, high=35)}, {}, name="wide", dtypes=("float32", "float16")),
        Sample(
            {"Logits": wide, "Label": _probabilities(3, 35, seed=1)},
            {"soft_label": True},
            name="wide_soft",
            dtypes=("float32", "float16"),
        ),
        Sample({"Logits": rand(0, 4), "Label": ints(0, 1)}, {}, name="empty"),
    ]


register_op(
    "softmax_with_cross_entropy",
    inputs=("Logits", "Label"),
    outputs=(Slot("Softmax", dispensable=True), "Loss"),
    attrs=_ATTRS,
    infer=_infer_softmax,
    grad=GradRule("softmax_with_cross_entropy_grad", ("Softmax", "Label", "Loss@GRAD"), ("Logits",)),
    decompose=_decompose_softmax,
    dtypes={"Logits": ALL_FLOATS, "Label": _LABELS},
    reference=_reference_softmax,
    samples=_samples_softmax,
    doc="Softmax = softmax(Logits); Loss = log(sum(exp(Logits))) - Logits[Label], or sum over soft labels",
    source="Fluid softmax_with_cross_entropy_op.cc",
)


def _infer_softmax_grad(call: Call) -> Inferred:
    return {"Logits@GRAD": like(call.spec("Softmax"))}


register_op(
    "softmax_with_cross_entropy_grad",
    inputs=grad_inputs("Softmax", "Label", "Loss@GRAD"),
    outputs=grad_outputs("Logits"),
    attrs=_ATTRS,
    infer=_infer_softmax_grad,
    doc="Logits@GRAD = Loss@GRAD (Softmax - one_hot(Label)), 0 in ignored rows; Loss@GRAD (Softmax - Label) if soft",
)
