"""Losses of two classes and of pairs in order: a number for each score, and so functions of scalars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.codegen.expr import abs_, exp, log, log1p, logical_and, maximum, where
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, ScalarRule, Slot
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, all_agree, grad_inputs, grad_like, grad_outputs, like, merged
from fluidlite.operators.inference import same_dtype as same
from fluidlite.operators.samples import EVERY, WIDE, away_from, ints, rand
from fluidlite.operators.scalar_op import scalar_op


def _pairs(scores: str, labels: str, **options: Any) -> Callable[..., list[Sample]]:
    """Return samples of scores and labels 0 and 1 in the usual dims and at the edges."""

    def samples(*attrs: Mapping[str, Any], low: float = -3.0, high: float = 3.0, avoid: Any = ()) -> list[Sample]:
        def inputs(*dims: int) -> dict[str, Any]:
            x = away_from(rand(*dims, low=low, high=high, seed=3), *avoid)
            return {scores: x, labels: np.asarray(ints(*dims, high=2, seed=4), "float32")}

        first, *others = attrs or ({},)
        return [
            Sample(inputs(7, 1), first, (scores,), name="rows", dtypes=EVERY),
            *(Sample(inputs(5, 1), each, (scores,), name=f"attrs{i}") for i, each in enumerate(others, 1)),
            Sample(inputs(3, 4, 2), first, (scores,), name="rank3", dtypes=WIDE),
            Sample(inputs(1), first, (scores,), name="one"),
            Sample(inputs(0, 1), first, name="empty"),
        ]

    return samples


# hinge_loss --------------------------------------------------------------------------------------------------------

scalar_op(
    "hinge_loss",
    lambda logits, labels: maximum(1 - (2 * labels - 1) * logits, 0),
    outputs=("Loss",),
    grad=lambda logits, labels, dloss: where((2 * labels - 1) * logits < 1, (1 - 2 * labels) * dloss, 0),
    dtypes=ALL_FLOATS,
    reference=lambda inputs, attrs: {"Loss": np.maximum(0, 1 - (2 * inputs["Labels"] - 1) * inputs["Logits"])},
    samples=lambda: _pairs("Logits", "Labels")(avoid=(-1, 1)),
    doc="Loss = max(0, 1 - (2 Labels - 1) Logits), Labels 0 or 1",
    source="Fluid hinge_loss_op.cc",
)

# log_loss ----------------------------------------------------------------------------------------------------------


def _reference_log_loss(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    p, label, e = inputs["Predicted"], inputs["Labels"], attrs["epsilon"]
    return {"Loss": -label * np.log(p + e) - (1 - label) * np.log(1 - p + e)}


scalar_op(
    "log_loss",
    lambda predicted, labels, *, epsilon: (
        -labels * log(predicted + epsilon) - (1 - labels) * log(1 - predicted + epsilon)
    ),
    outputs=("Loss",),
    attrs=(Attr("epsilon", "float", doc="keeps the logarithms finite"),),
    grad=lambda predicted, labels, dloss, *, epsilon: (
        dloss * ((1 - labels) / (1 - predicted + epsilon) - labels / (predicted + epsilon))
    ),
    dtypes=ALL_FLOATS,
    reference=_reference_log_loss,
    samples=lambda: _pairs("Predicted", "Labels")({"epsilon": 1e-4}, {"epsilon": 0.2}, low=0.1, high=0.9),
    doc="Loss = -Labels ln(Predicted + epsilon) - (1 - Labels) ln(1 - Predicted + epsilon)",
    source="Fluid log_loss_op.cc",
)

# modified_huber_loss -----------------------------------------------------------------------------------------------


def _modified_huber(x: Any, y: Any) -> Any:
    value = x * (2 * y - 1)
    return value, where(value < -1, -4 * value, maximum(1 - value, 0) * maximum(1 - value, 0))


def _reference_modified_huber(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    value = inputs["X"] * (2 * inputs["Y"] - 1)
    loss = [-4 * v if v < -1 else (1 - v) ** 2 if v < 1 else 0.0 for v in value.reshape(-1)]
    return {"IntermediateVal": value, "Out": np.reshape(loss, value.shape)}


scalar_op(
    "modified_huber_loss",
    _modified_huber,
    outputs=("IntermediateVal", "Out"),
    slots=[Slot("IntermediateVal", intermediate=True, content="X (2 Y - 1)")],
    grad=lambda y, intermediate_val, dout: where(
        intermediate_val < -1, -4 * (2 * y - 1) * dout, -2 * maximum(1 - intermediate_val, 0) * (2 * y - 1) * dout
    ),
    dtypes=ALL_FLOATS,
    reference=_reference_modified_huber,
    samples=lambda: _pairs("X", "Y")(avoid=(-1, 1)),
    doc="v = X (2 Y - 1); Out = max(0, 1 - v)^2, but -4 v if v < -1; Y is 0 or 1",
    source="Fluid modified_huber_loss_op.cc",
)

# rank_loss ---------------------------------------------------------------------------------------------------------


def _softplus(x: Any) -> Any:
    return maximum(x, 0) + log1p(exp(-abs_(x)))


def _rank_grad(label: Any, left: Any, right: Any, dout: Any) -> Any:
    toward = (1 / (1 + exp(right - left)) - label) * dout
    return toward, -toward


def _reference_rank(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    apart = inputs["Left"] - inputs["Right"]
    return {"Out": np.logaddexp(0, apart) - inputs["Label"] * apart}


def _samples_rank() -> list[Sample]:
    def inputs(*dims: int, far: float = 1.0) -> dict[str, Any]:
        label = np.asarray(ints(*dims, high=3) / 2, "float32")
        return {"Label": label, "Left": far * rand(*dims, seed=1), "Right": far * rand(*dims, seed=2)}

    return [
        Sample(inputs(7, 1), {}, ("Left", "Right"), name="rows", dtypes=EVERY),
        Sample(inputs(6), {}, ("Left", "Right"), name="vector"),
        Sample(inputs(6, 1, far=200.0), {}, name="far"),
        Sample(inputs(0, 1), {}, name="empty"),
    ]


scalar_op(
    "rank_loss",
    lambda label, left, right: _softplus(left - right) - label * (left - right),
    grad=_rank_grad,
    differentiable=("Left", "Right"),
    dtypes=ALL_FLOATS,
    reference=_reference_rank,
    samples=_samples_rank,
    doc="Out = ln(1 + exp(Left - Right)) - Label (Left - Right)",
    source="Fluid rank_loss_op.cc",
)

# margin_rank_loss --------------------------------------------------------------------------------------------------


def _margin_rank(x1: Any, x2: Any, label: Any, *, margin: float) -> Any:
    loss = margin - label * (x1 - x2)
    return where(loss > 0, 1, 0), maximum(loss, 0)


def _margin_rank_grad(label: Any, activated: Any, dout: Any) -> Any:
    toward = activated * label * dout
    return -toward, toward


def _reference_margin_rank(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    loss = attrs["margin"] - inputs["Label"] * (inputs["X1"] - inputs["X2"])
    return {"Activated": np.heaviside(loss, 0.0), "Out": np.maximum(loss, 0.0)}


def _samples_margin_rank() -> list[Sample]:
    def inputs(*dims: int) -> dict[str, Any]:
        label = np.asarray(2 * ints(*dims, high=2) - 1, "float32")
        apart = away_from(rand(*dims, low=-2, high=2, seed=1), -0.5, 0, 0.5)
        x2 = np.asarray(ints(*dims, high=9) / 4, "float32")
        return {"X1": x2 + apart, "X2": x2, "Label": label}

    return [
        Sample(inputs(9, 1), {}, ("X1", "X2"), name="rows", dtypes=WIDE),
        Sample(inputs(9, 1), {"margin": 0.5}, ("X1", "X2"), name="margin", dtypes=EVERY),
        Sample(inputs(3, 4), {"margin": 0.5}, ("X1", "X2"), name="matrix"),
        Sample(inputs(0, 1), {}, name="empty"),
    ]


scalar_op(
    "margin_rank_loss",
    _margin_rank,
    outputs=("Activated", "Out"),
    slots=[Slot("Activated", intermediate=True, content="1 where Out is above 0, else 0")],
    attrs=(Attr("margin", "float", 0.0, doc="how far apart the scores must be to cost nothing"),),
    grad=_margin_rank_grad,
    differentiable=("X1", "X2"),
    grad_attrs=(),
    dtypes=ALL_FLOATS,
    reference=_reference_margin_rank,
    samples=_samples_margin_rank,
    doc="Out = max(0, margin - Label (X1 - X2)), Label 1 or -1",
    source="Fluid margin_rank_loss_op.cc",
)

# teacher_student_sigmoid_loss --------------------------------------------------------------------------------------


def _clicked(label: Any) -> Any:
    """What the label counts of X: -1 is a click alone, and from 0 on both losses add up to the label itself."""
    return where(label < -1, 0, where(label < 0, 1, label))


def _teacher_student(x: Any, label: Any, *, soft_max_up_bound: float, soft_max_lower_bound: float) -> Any:
    return where(label < 0, 1, 2) * _softplus(x) - _clicked(label) * x


def _teacher_student_grad(x: Any, label: Any, dy: Any, *, soft_max_up_bound: float, soft_max_lower_bound: float) -> Any:
    inside = logical_and(x < soft_max_up_bound, x > soft_max_lower_bound)
    return where(inside, (where(label < 0, 1, 2) / (1 + exp(-x)) - _clicked(label)) * dy, 0)


def _reference_teacher_student(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    def loss(x: float, label: float) -> float:
        def cross_entropy(truth: float) -> float:
            return float(np.logaddexp(0, x) - x * truth)

        if label < 0:
            return cross_entropy(0.0 if label < -1 else 1.0)
        click = 0.0 if label < 1 else 1.0
        return cross_entropy(click) + cross_entropy(label - click)

    x = inputs["X"]
    values = [loss(*pair) for pair in zip(x.reshape(-1), inputs["Label"].reshape(-1), strict=True)]
    return {"Y": np.reshape(values, x.shape)}


def _samples_teacher_student() -> list[Sample]:
    label = np.asarray([[-2], [-1], [0], [0.25], [0.75], [1], [1.5], [2]], "float32")
    x = rand(8, 1, low=-3, high=3, seed=2)
    bounds = {"soft_max_up_bound": 4.0, "soft_max_lower_bound": -4.0}
    return [
        Sample({"X": x, "Label": label}, {}, ("X",), name="labels", dtypes=EVERY),
        Sample({"X": x, "Label": label}, bounds, ("X",), name="bounds"),
        Sample({"X": rand(0, 1), "Label": rand(0, 1)}, {}, name="empty"),
    ]


scalar_op(
    "teacher_student_sigmoid_loss",
    _teacher_student,
    outputs=("Y",),
    attrs=(
        Attr("soft_max_up_bound", "float", 15.0, doc="from here on up X gets no gradient"),
        Attr("soft_max_lower_bound", "float", -15.0, doc="from here on down X gets no gradient"),
    ),
    grad=_teacher_student_grad,
    dtypes=ALL_FLOATS,
    reference=_reference_teacher_student,
    samples=_samples_teacher_student,
    doc="Y = the sigmoid cross entropy of X with the click, and with the teacher's value if there is one; Label: -2 no "
    "click, -1 click, else click (0 or 1) plus value",
    source="Fluid teacher_student_sigmoid_loss_op.cc",
)

# sigmoid_cross_entropy_with_logits ---------------------------------------------------------------------------------

_SIGMOID_ATTRS = (
    Attr("ignore_index", "int", -100, doc="elements of this label cost 0; the fraction of a label does not count here"),
    Attr("normalize", "bool", False, doc="divide by the number of elements that are not ignored"),
)
_FEWEST = 1e-5
"""The least number of elements that one divides by."""


def _ignored(label: Any, ignore: int) -> Any:
    """Whether the label without its fraction is ``ignore``."""
    first, last = (ignore, ignore + 1) if ignore > 0 else (ignore - 1, ignore) if ignore < 0 else (-1, 1)
    over = label >= first if ignore > 0 else label > first
    return logical_and(over, label <= last if ignore < 0 else label < last)


def _sigmoid_loss(x: Any, label: Any, *, ignore_index: int) -> Any:
    return where(_ignored(label, ignore_index), 0, _softplus(x) - x * label)


def _sigmoid_grad(x: Any, label: Any, dout: Any, *, ignore_index: int) -> Any:
    return where(_ignored(label, ignore_index), 0, (1 / (1 + exp(-x)) - label) * dout)


def _infer_sigmoid(call: Call) -> Inferred:
    same(call, "Label", "X")
    x, label = call.dims("X"), call.dims("Label")
    call.need(all_agree(x, label), "Label", f"{list(x)}, the dims of X")
    return {"Out": like(call.spec("X"), merged(x, label))}


def _unnormalized(call: Call) -> str | None:
    return "normalize divides by a count" if call.attr("normalize") else None


def _divide_by_count(call: Call, build: Any, type: str, reads: tuple[str, ...], slot: str) -> str | None:
    """Write what the operator itself gives unnormalised, divided by the number of elements that count."""
    if not call.attr("normalize"):
        return "it is one expression"
    dtype, label = call.dtype("X"), build.input("Label")
    attrs = {"ignore_index": call.attr("ignore_index"), "normalize": False}
    whole = build(type, {name: build.input(name) for name in reads}, {slot: build.temp()}, attrs)
    number = {"shape": [1], "value": float(call.attr("ignore_index")), "dtype": dtype}
    ignored = build("fill_constant", {}, {"Out": build.temp()}, number)
    kept = build("not_equal", {"X": label, "Y": ignored}, {"Out": build.temp()})
    kept = build("cast", {"X": kept}, {"Out": build.temp()}, {"in_dtype": "bool", "out_dtype": "float32"})
    count = build("reduce_sum", {"X": kept}, {"Out": build.temp()}, {"reduce_all": True})
    fewest = build("fill_constant", {}, {"Out": build.temp()}, {"shape": [1], "value": _FEWEST})
    count = build("elementwise_max", {"X": count, "Y": fewest}, {"Out": build.temp()})
    count = build("cast", {"X": count}, {"Out": build.temp()}, {"in_dtype": "float32", "out_dtype": dtype})
    build("elementwise_div", {"X": whole, "Y": count}, {"Out": build.output(slot)})
    return None


def _decompose_sigmoid(call: Call, build: Any) -> str | None:
    return _divide_by_count(call, build, "sigmoid_cross_entropy_with_logits", ("X", "Label"), "Out")


def _decompose_sigmoid_grad(call: Call, build: Any) -> str | None:
    reads = ("X", "Label", "Out@GRAD")
    return _divide_by_count(call, build, "sigmoid_cross_entropy_with_logits_grad", reads, "X@GRAD")


def _reference_sigmoid(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, label = inputs["X"], inputs["Label"]
    loss = np.logaddexp(0, x) - x * label
    loss[np.trunc(label) == attrs["ignore_index"]] = 0
    if attrs["normalize"]:
        loss = loss / max(np.count_nonzero(label != attrs["ignore_index"]), 1e-5)
    return {"Out": loss}


def _samples_sigmoid() -> list[Sample]:
    x, label = rand(5, 7, low=-4, high=4), np.asarray(ints(5, 7, low=-1, high=2, seed=1), "float32")
    soft = {"X": x, "Label": rand(5, 7, low=-2, high=2, seed=1)}
    far = {"X": np.asarray([[-300, 300], [300, -300]], "float32"), "Label": np.asarray([[0, 1], [0, 1]], "float32")}
    return [
        Sample({"X": x, "Label": label}, {}, ("X",), name="labels", dtypes=EVERY),
        Sample({"X": x, "Label": label}, {"ignore_index": -1}, ("X",), name="ignored", dtypes=WIDE),
        Sample({"X": x, "Label": label}, {"ignore_index": -1, "normalize": True}, ("X",), name="normalized",
               dtypes=EVERY),
        Sample(soft, {}, ("X",), name="soft"),
        *(Sample(soft, {"ignore_index": i}, ("X",), name=f"fraction{i}") for i in (-1, 0, 1)),
        Sample({"X": x, "Label": np.ones_like(x)}, {"ignore_index": 1, "normalize": True}, ("X",), name="none_left"),
        Sample(far, {}, name="far"),
        Sample({"X": rand(4, seed=1), "Label": rand(4)}, {"normalize": True}, ("X",), name="vector"),
        Sample({"X": rand(0, 3), "Label": rand(0, 3)}, {"normalize": True}, name="empty"),
    ]  # fmt: skip


register_op(
    "sigmoid_cross_entropy_with_logits",
    inputs=("X", "Label"),
    outputs=("Out",),
    attrs=_SIGMOID_ATTRS,
    infer=_infer_sigmoid,
    grad=GradRule("sigmoid_cross_entropy_with_logits_grad", ("X", "Label", "Out@GRAD"), ("X",)),
    scalar=ScalarRule(_sigmoid_loss, ("Out",), _unnormalized),
    decompose=_decompose_sigmoid,
    may_alias={"Out": "X"},
    dtypes={"X": ALL_FLOATS, "Label": ALL_FLOATS},
    reference=_reference_sigmoid,
    samples=_samples_sigmoid,
    doc="Out = ln(1 + exp(X)) - X Label; 0 where Label is ignore_index; normalize counts with temporary tensors",
    source="Fluid sigmoid_cross_entropy_with_logits_op.cc",
)

register_op(
    "sigmoid_cross_entropy_with_logits_grad",
    inputs=grad_inputs("X", "Label", "Out@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_SIGMOID_ATTRS,
    infer=grad_like("X"),
    scalar=ScalarRule(_sigmoid_grad, ("X@GRAD",), _unnormalized),
    decompose=_decompose_sigmoid_grad,
    may_alias={"X@GRAD": "Out@GRAD"},
    doc="X@GRAD = (1 / (1 + exp(-X)) - Label) Out@GRAD; 0 where Label is ignore_index",
)
