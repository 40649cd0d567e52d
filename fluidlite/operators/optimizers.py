"""Optimiser updates: sgd, momentum, adam. The parameter and its state are written in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, HALVES, NUMPY, compute_dtype
from fluidlite.codegen.expr import sqrt
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample
from fluidlite.operators.inference import Inferred, agree, all_agree, like, same_dtype
from fluidlite.operators.samples import MIXED, WIDE, rand
from fluidlite.operators.scalar_op import scalar_op


def _infer(state: Sequence[str], scalars: Sequence[str], outputs: Mapping[str, str]) -> Callable[[Call], Inferred]:
    """Return the inference of an update: ``state`` is as Param, ``scalars`` are [1]; outputs are as their inputs.

    All but Grad may be float32 where Param is a half type: in that, powers of beta2 near 1 and slow averages stall.
    """

    def infer(call: Call) -> Inferred:
        for slot in state:
            _same_or_computed(call, slot)
            if not all_agree(call.dims(slot), call.dims("Param")):
                call.fail(slot, f"{list(call.dims('Param'))}, the dims of Param")
        for slot in scalars:
            _same_or_computed(call, slot)
            call.need(len(call.dims(slot)) == 1 and agree(call.dims(slot)[0], 1), slot, "[1]")
        return {output: like(call.spec(slot)) for output, slot in outputs.items()}

    return infer


def _same_or_computed(call: Call, slot: str) -> None:
    """Raise DtypeError unless a slot has Param's dtype or (Grad apart) the one in which Param is computed."""
    if slot == "Grad" or call.dtype(slot) != compute_dtype(call.dtype("Param")):
        same_dtype(call, slot, "Param")


def _halved(inputs: Mapping[str, Any], dtype: str, *wide: str) -> dict[str, Any]:
    """Inputs in a half type, but for those named."""
    return {slot: array if slot in wide else array.astype(NUMPY[dtype]) for slot, array in inputs.items()}


def _inputs(*dims: int, **states: tuple[float, float]) -> dict[str, Any]:
    inputs = {
        "Param": rand(*dims, seed=1),
        "Grad": rand(*dims, seed=2),
        "LearningRate": np.asarray([0.1], "float32"),
    }
    for i, (slot, (low, high)) in enumerate(states.items()):
        inputs[slot] = rand(*dims, low=low, high=high, seed=3 + i)
    return inputs


# sgd ---------------------------------------------------------------------------------------------------------------

_SGD_ALIAS = {"ParamOut": "Param"}

scalar_op(
    "sgd",
    lambda param, grad, learning_rate: param - learning_rate * grad,
    outputs=("ParamOut",),
    infer=_infer(("Grad",), ("LearningRate",), _SGD_ALIAS),
    must_alias=_SGD_ALIAS,
    dtypes={"Param": ALL_FLOATS},
    reference=lambda inputs, attrs: {"ParamOut": inputs["Param"] - inputs["LearningRate"] * inputs["Grad"]},
    samples=lambda: [
        Sample(_inputs(5, 7), {}, name="matrix", dtypes=WIDE),
        Sample(_inputs(1), {}, name="one"),
        Sample(_inputs(0, 3), {}, name="empty"),
        *(Sample(_halved(_inputs(5, 7), half, "LearningRate"), {}, name=half, dtypes=MIXED) for half in HALVES),
    ],
    doc="ParamOut = Param - LearningRate Grad",
    source="Fluid sgd_op.cc",
)

# momentum ----------------------------------------------------------------------------------------------------------

_MOMENTUM_ALIAS = {"ParamOut": "Param", "VelocityOut": "Velocity"}


def _momentum(param: Any, grad: Any, velocity: Any, learning_rate: Any, *, mu: float, use_nesterov: bool) -> Any:
    speed = mu * velocity + grad
    if use_nesterov:
        return param - learning_rate * (grad + mu * speed), speed
    return param - learning_rate * speed, speed


def _reference_momentum(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    mu, grad, rate = attrs["mu"], inputs["Grad"], inputs["LearningRate"]
    velocity = mu * inputs["Velocity"] + grad
    step = grad * rate + mu * velocity * rate if attrs["use_nesterov"] else velocity * rate
    return {"ParamOut": inputs["Param"] - step, "VelocityOut": velocity}


scalar_op(
    "momentum",
    _momentum,
    outputs=("ParamOut", "VelocityOut"),
    attrs=(Attr("mu", "float", doc="what is kept of the velocity"), Attr("use_nesterov", "bool", False)),
    infer=_infer(("Grad", "Velocity"), ("LearningRate",), _MOMENTUM_ALIAS),
    must_alias=_MOMENTUM_ALIAS,
    dtypes={"Param": ALL_FLOATS},
    reference=_reference_momentum,
    samples=lambda: [
        Sample(_inputs(5, 7, Velocity=(-1, 1)), {"mu": 0.9}, name="matrix", dtypes=WIDE),
        Sample(_inputs(5, 7, Velocity=(-1, 1)), {"mu": 0.5, "use_nesterov": True}, name="nesterov", dtypes=WIDE),
        Sample(_inputs(300, 250, Velocity=(-1, 1)), {"mu": 0.9}, name="large"),
        Sample(_inputs(1, Velocity=(-1, 1)), {"mu": 0.9}, name="one"),
        Sample(_inputs(0, 3, Velocity=(-1, 1)), {"mu": 0.9}, name="empty"),
        Sample(
            _halved(_inputs(5, 7, Velocity=(-1, 1)), "float16", "LearningRate"),
            {"mu": 0.9},
            name="float16",
            dtypes=MIXED,
        ),
        Sample(
            _halved(_inputs(5, 7, Velocity=(-1, 1)), "bfloat16", "LearningRate", "Velocity"),
            {"mu": 0.9},
            name="bfloat16",
            dtypes=MIXED,
        ),
    ],
    doc="VelocityOut = mu Velocity + Grad; ParamOut = Param - LearningRate VelocityOut, or by Nesterov's step "
    "Param - LearningRate (Grad + mu VelocityOut)",
    source="Fluid momentum_op.h",
)

# adam --------------------------------------------------------------------------------------------------------------

_ADAM_ALIAS = {"ParamOut": "Param", "Moment1Out": "Moment1", "Moment2Out": "Moment2"}


def _adam(
    param: Any, grad: Any, learning_rate: Any, moment1: Any, moment2: Any, beta1_pow: Any, beta2_pow: Any,
    *, beta1: float, beta2: float, epsilon: float,
) -> Any:  # fmt: skip
    first = beta1 * moment1 + (1 - beta1) * grad
    second = beta2 * moment2 + (1 - beta2) * grad * grad
    rate = learning_rate * sqrt(1 - beta2_pow) / (1 - beta1_pow)
    return param - rate * (first / (sqrt(second) + epsilon)), first, second


def _reference_adam(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    b1, b2, grad = attrs["beta1"], attrs["beta2"], inputs["Grad"]
    m = inputs["Moment1"] * b1 + grad * (1 - b1)
    v = inputs["Moment2"] * b2 + np.square(grad) * (1 - b2)
    rate = inputs["LearningRate"] * np.sqrt(1 - inputs["Beta2Pow"]) / (1 - inputs["Beta1Pow"])
    return {"ParamOut": inputs["Param"] - rate * m / (np.sqrt(v) + attrs["epsilon"]), "Moment1Out": m, "Moment2Out": v}


def _adam_inputs(*dims: int) -> dict[str, Any]:
    powers = {"Beta1Pow": np.asarray([0.81], "float32"), "Beta2Pow": np.asarray([0.998], "float32")}
    return {**_inputs(*dims, Moment1=(-1, 1), Moment2=(0.1, 1)), **powers}


scalar_op(
    "adam",
    _adam,
    outputs=("ParamOut", "Moment1Out", "Moment2Out"),
    attrs=(
        Attr("beta1", "float", 0.9),
        Attr("beta2", "float", 0.999),
        Attr("epsilon", "float", 1e-8),
        Attr("lazy_mode", "bool", False, doc="of no effect on dense gradients"),
    ),
    infer=_infer(("Grad", "Moment1", "Moment2"), ("LearningRate", "Beta1Pow", "Beta2Pow"), _ADAM_ALIAS),
    must_alias=_ADAM_ALIAS,
    dtypes={"Param": ALL_FLOATS},
    reference=_reference_adam,
    samples=lambda: [
        Sample(_adam_inputs(5, 7), {}, name="matrix", dtypes=WIDE),
        Sample(_adam_inputs(5, 7), {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.1}, name="attributes", dtypes=WIDE),
        Sample(_adam_inputs(1), {}, name="one"),
        Sample(_adam_inputs(0, 3), {}, name="empty"),
        *(
            Sample(
                _halved(_adam_inputs(5, 7), half, "LearningRate", "Beta1Pow", "Beta2Pow", "Moment1", "Moment2"),
                {},
                name=half,
                dtypes=MIXED,
            )
            for half in HALVES
        ),
        Sample(
            _halved(_adam_inputs(5, 7), "float16", "LearningRate", "Beta1Pow", "Beta2Pow"),
            {},
            name="half_moments",
            dtypes=MIXED,
        ),
    ],
    doc="Moment1Out = beta1 Moment1 + (1 - beta1) Grad; Moment2Out = beta2 Moment2 + (1 - beta2) Grad^2; "
    "ParamOut = Param - LearningRate sqrt(1 - Beta2Pow) / (1 - Beta1Pow) Moment1Out / (sqrt(Moment2Out) + epsilon)",
    source="Fluid adam_op.h",
)
