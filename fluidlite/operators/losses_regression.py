"""Losses of regression: huber_loss, smooth_l1_loss, and kldiv_loss between distributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.codegen.expr import abs_, log, maximum, minimum, where
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, ScalarRule, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, all_agree, grad_inputs, grad_like, grad_outputs, like, merged, size
from fluidlite.operators.inference import same_dtype as same
from fluidlite.operators.samples import EVERY, WIDE, away_from, rand
from fluidlite.operators.scalar_op import scalar_op

# huber_loss --------------------------------------------------------------------------------------------------------


def _huber(x: Any, y: Any, *, delta: float) -> Any:
    residual = y - x
    near = minimum(abs_(residual), delta)
    return residual, near * (abs_(residual) - 0.5 * near)


def _huber_grad(residual: Any, dout: Any, *, delta: float) -> Any:
    toward = maximum(minimum(residual, delta), -delta) * dout
    return -toward, toward


def _reference_huber(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    residual, delta = inputs["Y"] - inputs["X"], attrs["delta"]
    far = delta * (np.abs(residual) - delta / 2)
    return {"Residual": residual, "Out": np.where(np.abs(residual) <= delta, residual**2 / 2, far)}


def _samples_huber() -> list[Sample]:
    def inputs(*dims: int) -> dict[str, Any]:
        y = rand(*dims, low=-2, high=2, seed=1)
        return {"X": y + away_from(rand(*dims, low=-2, high=2, seed=2), -1, -0.5, 0.5, 1), "Y": y}

    return [
        Sample(inputs(9, 1), {"delta": 1.0}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample(inputs(9, 1), {"delta": 0.5}, ("X", "Y"), name="delta", dtypes=WIDE),
        Sample(inputs(3, 4, 2), {"delta": 1.0}, ("X", "Y"), name="rank3"),
        Sample(inputs(0, 1), {"delta": 1.0}, name="empty"),
    ]


scalar_op(
    "huber_loss",
    _huber,
    outputs=("Residual", "Out"),
    slots=[Slot("Residual", intermediate=True, content="Y - X")],
    attrs=(Attr("delta", "float", minimum=0, doc="from which distance on the loss is linear"),),
    grad=_huber_grad,
    differentiable=("X", "Y"),
    dtypes=ALL_FLOATS,
    reference=_reference_huber,
    samples=_samples_huber,
    doc="r = |Y - X|; Out = r^2 / 2 if r <= delta, else delta (r - delta / 2)",
    source="Fluid huber_loss_op.cc",
)

# smooth_l1_loss ----------------------------------------------------------------------------------------------------

_SIGMA = (Attr("sigma", "float", 1.0, doc="its square is the curvature near 0; from 1 / sigma^2 on it is linear"),)
_WEIGHTS = ("InsideWeight", "OutsideWeight")


def _infer_smooth(call: Call) -> Inferred:
    x, dims = call.spec("X"), call.dims("X")
    call.need(len(dims) >= 2, "X", "[rows, ...], rank 2 or more")
    for slot in ("Y", *(slot for slot in _WEIGHTS if call.has(slot))):
        same(call, slot, "X")
        call.need(all_agree(call.dims(slot), dims), slot, f"{list(dims)}, the dims of X")
    for slot, other in (_WEIGHTS, _WEIGHTS[::-1]):
        call.need(call.has(slot) or not call.has(other), slot, f"a tensor as {other} is: there are both or none")
    return {"Diff": Spec.of(merged(dims, call.dims("Y")), x.dtype), "Out": Spec.of((dims[0], 1), x.dtype)}


def _reference_smooth(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    square = attrs["sigma"] ** 2
    diff = (inputs["X"] - inputs["Y"]) * inputs.get("InsideWeight", 1.0)
    distance = np.abs(diff)
    loss = np.where(distance < 1 / square, square * diff**2 / 2, distance - 0.5 / square)
    loss = loss * inputs.get("OutsideWeight", 1.0)
    rows = diff.shape[0]
    return {"Diff": diff, "Out": np.sum(loss.reshape(rows, int(np.prod(diff.shape[1:]))), axis=1).reshape(rows, 1)}


def _samples_smooth() -> list[Sample]:
    def inputs(*dims: int, weights: bool = False) -> dict[str, Any]:
        y = np.round(rand(*dims, low=-2, high=2, seed=1) * 8) / 8
        found = {"X": y + away_from(rand(*dims, low=-2, high=2, seed=2), -1, -0.25, 0.25, 1, gap=0.1), "Y": y}
        if weights:  # powers of two leave the distances where they are, beside the kinks
            found["InsideWeight"] = np.where(rand(*dims, seed=3) < 0, np.float32(0), np.float32(1))
            found["OutsideWeight"] = rand(*dims, low=0.5, high=2, seed=4)
        return found

    return [
        Sample(inputs(5, 4), {}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample(inputs(5, 4), {"sigma": 2.0}, ("X", "Y"), name="sigma", dtypes=WIDE),
        Sample(inputs(5, 4, weights=True), {"sigma": 2.0}, ("X", "Y"), name="weights", dtypes=EVERY),
        Sample(inputs(2, 3, 2, weights=True), {}, ("X", "Y"), name="rank3"),
        Sample(inputs(2, 70000, weights=True), {"sigma": 2.0}, name="blocks", dtypes=("float32", "float16")),
        Sample(inputs(3, 70), {}, name="wide", dtypes=("float32", "float16")),
        Sample(inputs(1, 1), {}, ("X", "Y"), name="one"),
        Sample(inputs(0, 4), {}, name="empty"),
        Sample(inputs(3, 0), {}, name="empty_rows"),
    ]


register_op(
    "smooth_l1_loss",
    inputs=("X", "Y", *(Slot(slot, dispensable=True) for slot in _WEIGHTS)),
    outputs=(Slot("Diff", intermediate=True, content="InsideWeight (X - Y)"), "Out"),
    attrs=_SIGMA,
    infer=_infer_smooth,
    grad=GradRule("smooth_l1_loss_grad", (*_WEIGHTS, "Diff", "Out@GRAD"), ("X", "Y")),
    dtypes=dict.fromkeys(("X", "Y", *_WEIGHTS), ALL_FLOATS),
    reference=_reference_smooth,
    samples=_samples_smooth,
    doc="d = InsideWeight (X - Y); Out = the sum of each row's OutsideWeight l, where l = (sigma d)^2 / 2 if "
    "|d| < 1 / sigma^2, else |d| - 0.5 / sigma^2",
    source="Fluid smooth_l1_loss_op.cc",
)


def _infer_smooth_grad(call: Call) -> Inferred:
    return {"X@GRAD": like(call.spec("Diff")), "Y@GRAD": like(call.spec("Diff"))}


register_op(
    "smooth_l1_loss_grad",
    inputs=(*(Slot(slot, dispensable=True) for slot in _WEIGHTS), *grad_inputs("Diff", "Out@GRAD")),
    outputs=grad_outputs("X", "Y"),
    attrs=_SIGMA,
    infer=_infer_smooth_grad,
    kernel_dtype="Diff",
    doc="X@GRAD = InsideWeight OutsideWeight min(max(sigma^2 Diff, -1), 1) Out@GRAD of the row; Y@GRAD = -X@GRAD",
)

# kldiv_loss --------------------------------------------------------------------------------------------------------

_REDUCTION = (
    Attr("reduction", "str", "mean", choices=("none", "batchmean", "mean", "sum"), doc="batchmean: the sum / rows"),
)


def _kldiv(x: Any, target: Any, *, reduction: str) -> Any:
    return where(target > 0, target * (log(where(target > 0, target, 1)) - x), 0)


def _kldiv_grad(target: Any, dloss: Any, *, reduction: str) -> Any:
    return -maximum(target, 0) * dloss


def _infer_kldiv(call: Call) -> Inferred:
    x, target = call.spec("X"), call.dims("Target")
    same(call, "Target", "X")
    call.need(x.rank >= 1, "X", "[rows, ...], rank 1 or more")
    call.need(all_agree(x.dims, target), "Target", f"{list(x.dims)}, the dims of X")
    if call.attr("reduction") == "none":
        return {"Loss": like(x, merged(x.dims, target))}
    return {"Loss": Spec.of((1,), x.dtype)}


def _elementwise(call: Call) -> str | None:
    return None if call.attr("reduction") == "none" else "it sums"


def _shared_grad(call: Call) -> str | None:
    return None if call.attr("reduction") in ("none", "sum") else "it divides by a number of elements"


def _divisor(call: Call) -> int:
    """The number by which the reduction divides the sum."""
    dims = call.dims("X")
    return {"mean": size(dims), "batchmean": dims[0]}.get(call.attr("reduction"), 1)


def _decompose_kldiv_grad(call: Call, build: Any) -> str | None:
    if _shared_grad(call) is None:
        return "it is one expression"
    attrs = {"scale": 1 / max(_divisor(call), 1)}
    dloss = build("scale", {"X": build.input("Loss@GRAD")}, {"Out": build.temp()}, attrs)
    inputs = {"X": build.input("X"), "Target": build.input("Target"), "Loss@GRAD": dloss}
    build("kldiv_loss_grad", inputs, {"X@GRAD": build.output("X@GRAD")}, {"reduction": "sum"})
    return None


def _reference_kldiv(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, target = inputs["X"], inputs["Target"]
    loss = np.asarray([t * (np.log(t) - v) if t > 0 else 0.0 for v, t in zip(x.reshape(-1), target.reshape(-1),
                                                                             strict=True)])  # fmt: skip
    if attrs["reduction"] == "none":
        return {"Loss": loss.reshape(x.shape)}
    count = {"mean": x.size, "batchmean": x.shape[0], "sum": 1}[attrs["reduction"]]
    return {"Loss": np.sum(loss).reshape(1) / max(count, 1)}


def _samples_kldiv() -> list[Sample]:
    def inputs(*dims: int) -> dict[str, Any]:
        target = rand(*dims, low=-0.4, high=1, seed=2)
        return {"X": rand(*dims, low=-3, high=0, seed=1), "Target": np.where(target < -0.2, np.float32(0), target)}

    impossible = inputs(4, 5)
    impossible["X"][impossible["Target"] == 0] = -np.inf
    found = [
        Sample(inputs(4, 5), {"reduction": reduction}, ("X",), name=reduction, dtypes=EVERY)
        for reduction in ("none", "batchmean", "mean", "sum")
    ]
    return [
        *found,
        Sample(inputs(2, 3, 4), {}, ("X",), name="rank3", dtypes=WIDE),
        Sample(inputs(2, 3, 4), {"reduction": "batchmean"}, ("X",), name="rank3_batch"),
        Sample(inputs(300, 60), {}, name="large", dtypes=EVERY),
        Sample(inputs(300, 600), {"reduction": "sum"}, name="blocks", dtypes=("float32", "float16")),
        Sample(impossible, {"reduction": "sum"}, name="impossible"),
        Sample(inputs(6), {"reduction": "batchmean"}, ("X",), name="vector"),
        Sample(inputs(0, 3), {"reduction": "none"}, name="empty"),
        Sample(inputs(0, 3), {"reduction": "sum"}, name="empty_sum"),
        Sample(inputs(0, 3), {}, name="empty_mean"),
    ]


register_op(
    "kldiv_loss",
    inputs=("X", "Target"),
    outputs=("Loss",),
    attrs=_REDUCTION,
    infer=_infer_kldiv,
    grad=GradRule("kldiv_loss_grad", ("X", "Target", "Loss@GRAD"), ("X",)),
    scalar=ScalarRule(_kldiv, ("Loss",), _elementwise),
    dtypes={"X": ALL_FLOATS, "Target": ALL_FLOATS},
    reference=_reference_kldiv,
    samples=_samples_kldiv,
    doc="Loss = Target (ln(Target) - X), 0 where Target is not above 0; its mean, sum or sum / rows, 0 of nothing",
    memory="of a mean or a sum, on the host: two blocks of 256 KB for each thread",
    source="Fluid kldiv_loss_op.cc",
)

register_op(
    "kldiv_loss_grad",
    inputs=grad_inputs("X", "Target", "Loss@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    attrs=_REDUCTION,
    infer=grad_like("X"),
    kernel_dtype="Loss@GRAD",
    scalar=ScalarRule(_kldiv_grad, ("X@GRAD",), _shared_grad),
    decompose=_decompose_kldiv_grad,
    doc="X@GRAD = -max(Target, 0) Loss@GRAD, divided as the reduction divides",
)
