"""label_smooth: labels mixed with a prior distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, ScalarRule, Slot
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, agree, grad_inputs, grad_outputs, like, same_dtype, size
from fluidlite.operators.samples import EVERY, WIDE, rand

_ATTRS = (Attr("epsilon", "float", 0.0, doc="the weight of the prior"),)


def _infer(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank >= 1, "X", "[..., classes], rank 1 or more")
    if call.has("PriorDist"):
        same_dtype(call, "PriorDist", "X")
        call.need(agree(size(call.dims("PriorDist")), x.dims[-1]), "PriorDist", f"{x.dims[-1]} numbers, one a class")
    return {"Out": like(x)}


def _in_a_row(call: Call) -> str | None:
    if not call.has("PriorDist"):
        return "without PriorDist each class gets epsilon / classes"
    prior = call.dims("PriorDist")
    return None if prior[-1:] == call.dims("X")[-1:] else "PriorDist is no row of classes"


def _decompose(call: Call, build: Any) -> str | None:
    if _in_a_row(call) is None:
        return "it is one expression"
    epsilon, classes = call.attr("epsilon"), call.dims("X")[-1]
    if call.has("PriorDist"):
        prior = build("reshape2", {"X": build.input("PriorDist")}, {"Out": build.temp()}, {"shape": [classes]})
        inputs = {"X": build.input("X"), "PriorDist": prior}
        build("label_smooth", inputs, {"Out": build.output("Out")}, {"epsilon": epsilon})
    else:
        attrs = {"scale": 1 - epsilon, "bias": epsilon / max(classes, 1)}
        build("scale", {"X": build.input("X")}, {"Out": build.output("Out")}, attrs)
    return None


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, e = inputs["X"], attrs["epsilon"]
    prior = inputs["PriorDist"].reshape(-1) if "PriorDist" in inputs else 1 / x.shape[-1]
    return {"Out": (1 - e) * x + e * prior}


def _samples() -> list[Sample]:
    x, prior = rand(5, 4, low=0), rand(1, 4, low=0, seed=1)
    return [
        Sample({"X": x}, {}, ("X",), name="default"),
        Sample({"X": x}, {"epsilon": 0.1}, ("X",), name="uniform", dtypes=EVERY),
        Sample({"X": x, "PriorDist": prior}, {"epsilon": 0.3}, ("X",), name="prior", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4), "PriorDist": prior}, {"epsilon": 0.3}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": x, "PriorDist": prior.reshape(4, 1)}, {"epsilon": 0.3}, ("X",), name="column"),
        Sample({"X": rand(4), "PriorDist": prior[0]}, {"epsilon": 0.3}, ("X",), name="vector"),
        Sample({"X": rand(0, 4)}, {"epsilon": 0.3}, name="empty"),
    ]


register_op(
    "label_smooth",
    inputs=("X", Slot("PriorDist", dispensable=True, doc="a probability for each class; default: 1 / classes")),
    outputs=("Out",),
    attrs=_ATTRS,
    infer=_infer,
    grad=GradRule("label_smooth_grad", ("Out@GRAD",), ("X",)),
    scalar=ScalarRule(lambda x, prior_dist, *, epsilon: (1 - epsilon) * x + epsilon * prior_dist, ("Out",), _in_a_row),
    decompose=_decompose,
    may_alias={"Out": "X"},
    dtypes={"X": ALL_FLOATS, "PriorDist": ALL_FLOATS},
    reference=_reference,
    samples=_samples,
    doc="Out = (1 - epsilon) X + epsilon PriorDist, or + epsilon / classes",
    source="Fluid label_smooth_op.cc",
)


def _infer_grad(call: Call) -> Inferred:
    return {"X@GRAD": like(call.spec("Out@GRAD"))}


register_op(
    "label_smooth_grad",
    inputs=grad_inputs("Out@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_ATTRS,
    infer=_infer_grad,
    scalar=ScalarRule(lambda dout, *, epsilon: (1 - epsilon) * dout, ("X@GRAD",)),
    may_alias={"X@GRAD": "Out@GRAD"},
    doc="X@GRAD = (1 - epsilon) Out@GRAD",
)
