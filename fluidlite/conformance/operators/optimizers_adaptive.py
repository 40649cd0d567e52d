from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fluidlite.conformance.operators.optimizer_update import tensors, update_samples
from fluidlite.conformance.operators.optimizers import PROXIMAL, reference_proximal_step
from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs
from fluidlite.conformance.samples import Sample, register_samples

_ADAM_STATE = {"Moment1": (-1, 1), "Moment2": (0.1, 1), "Beta1Pow": (0.8, 0.82), "Beta2Pow": (0.9, 0.99)}


def _adam_samples() -> Iterable[Sample]:
    attributes = {"matrix": {}, "attributes": {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.1}}
    yield from update_samples(_ADAM_STATE, attributes)()
    betas = {"Beta1Tensor": (0.5, 0.6), "Beta2Tensor": (0.7, 0.8)}
    yield Sample(tensors(5, 7, **_ADAM_STATE, **betas), {}, name="betas_given", dtypes=WIDE)
    outputs = ("ParamOut", "Moment1Out", "Moment2Out")
    yield Sample(tensors(5, 7, **_ADAM_STATE), {}, name="powers_kept", outputs=outputs)


@register_samples("adam", samples=_adam_samples)
def _reference_adam(inputs: Inputs, attrs: Attrs) -> Outputs:
    b1, b2 = inputs.get("Beta1Tensor", attrs["beta1"]), inputs.get("Beta2Tensor", attrs["beta2"])
    grad = inputs["Grad"]
    m = inputs["Moment1"] * b1 + grad * (1 - b1)
    v = inputs["Moment2"] * b2 + np.square(grad) * (1 - b2)
    rate = inputs["LearningRate"] * np.sqrt(1 - inputs["Beta2Pow"]) / (1 - inputs["Beta1Pow"])
    return {
        "ParamOut": inputs["Param"] - rate * m / (np.sqrt(v) + attrs["epsilon"]),
        "Moment1Out": m,
        "Moment2Out": v,
        "Beta1PowOut": inputs["Beta1Pow"] * b1,
        "Beta2PowOut": inputs["Beta2Pow"] * b2,
    }


@register_samples(
    "adamax",
    samples=update_samples(
        {"Moment": (-1, 1), "InfNorm": (0.1, 1), "Beta1Pow": (0.8, 0.82)},
        {"matrix": {}, "attributes": {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.1}},
    ),
)
def _reference_adamax(inputs: Inputs, attrs: Attrs) -> Outputs:
    m = inputs["Moment"] + (1 - attrs["beta1"]) * (inputs["Grad"] - inputs["Moment"])
    u = np.fmax(np.sqrt(np.square(inputs["Grad"])), inputs["InfNorm"] * attrs["beta2"] + attrs["epsilon"])
    step = inputs["LearningRate"] * m / (u * (1 - inputs["Beta1Pow"]))
    return {"ParamOut": inputs["Param"] - step, "MomentOut": m, "InfNormOut": u}


def _reference_adagrad(inputs: Inputs, attrs: Attrs) -> Outputs:
    moment_weight, grad_weight = attrs.get("decay", 1), 1 - attrs["decay"] if "decay" in attrs else 1
    moment = moment_weight * inputs["Moment"] + grad_weight * np.square(inputs["Grad"])
    rates = inputs["LearningRate"] / (moment**0.5 + attrs["epsilon"])
    return {"ParamOut": inputs["Param"] - rates * inputs["Grad"], "MomentOut": moment}


register_samples(
    "adagrad",
    reference=_reference_adagrad,
    samples=update_samples({"Moment": (0.1, 1)}, {"matrix": {}, "epsilon": {"epsilon": 0.1}}),
)


register_samples(
    "decayed_adagrad",
    reference=_reference_adagrad,
    samples=update_samples({"Moment": (0.1, 1)}, {"matrix": {}, "attributes": {"decay": 0.5, "epsilon": 0.1}}),
)


@register_samples("proximal_adagrad", samples=update_samples({"Moment": (0.1, 1)}, PROXIMAL))
def _reference_proximal_adagrad(inputs: Inputs, attrs: Attrs) -> Outputs:
    rate, moment = inputs["LearningRate"], inputs["Moment"] + np.square(inputs["Grad"])
    moved = inputs["Param"] - rate * inputs["Grad"] * moment**-0.5
    return {"ParamOut": reference_proximal_step(moved, rate, attrs["l1"], attrs["l2"]), "MomentOut": moment}


@register_samples(
    "adadelta",
    samples=update_samples(
        {"AvgSquaredGrad": (0.1, 1), "AvgSquaredUpdate": (0.1, 1)},
        {"matrix": {}, "attributes": {"rho": 0.5, "epsilon": 0.1}},
        rate=False,
    ),
)
def _reference_adadelta(inputs: Inputs, attrs: Attrs) -> Outputs:
    rho, epsilon, old = attrs["rho"], attrs["epsilon"], inputs["AvgSquaredUpdate"]
    grads = inputs["AvgSquaredGrad"] * rho + np.square(inputs["Grad"]) * (1 - rho)
    step = -np.sqrt(old + epsilon) / np.sqrt(grads + epsilon) * inputs["Grad"]
    updates = old * rho + np.square(step) * (1 - rho)
    return {"ParamOut": inputs["Param"] + step, "AvgSquaredGradOut": grads, "AvgSquaredUpdateOut": updates}


_RMSPROP_STATE = {"MeanSquare": (1, 2), "Moment": (-1, 1)}


def _rmsprop_samples() -> Iterable[Sample]:
    attributes = {"matrix": {}, "attributes": {"epsilon": 0.1, "decay": 0.5, "momentum": 0.3}}
    outputs = ("ParamOut", "MomentOut", "MeanSquareOut")
    yield from update_samples(_RMSPROP_STATE, attributes, outputs)()
    state = {**_RMSPROP_STATE, "MeanGrad": (-0.5, 0.5)}
    for name, attrs in (("centered", {"centered": True, "momentum": 0.3}), ("not_centered", {})):
        yield Sample(tensors(5, 7, **state), attrs, name=name, dtypes=WIDE)


@register_samples("rmsprop", samples=_rmsprop_samples)
def _reference_rmsprop(inputs: Inputs, attrs: Attrs) -> Outputs:
    decay, grad = attrs["decay"], inputs["Grad"]
    square = inputs["MeanSquare"] * decay + np.square(grad) * (1 - decay)
    outputs = {"MeanSquareOut": square}
    variance = square
    if "MeanGrad" in inputs:
        outputs["MeanGradOut"] = inputs["MeanGrad"]
    if attrs["centered"]:
        outputs["MeanGradOut"] = inputs["MeanGrad"] * decay + grad * (1 - decay)
        variance = square - np.square(outputs["MeanGradOut"])
    speed = attrs["momentum"] * inputs["Moment"] + inputs["LearningRate"] * grad * (variance + attrs["epsilon"]) ** -0.5
    return {**outputs, "MomentOut": speed, "ParamOut": inputs["Param"] - speed}


_FTRL_EPSILON = 1e-10
"""Fluid adds it to l1 and l2."""


@register_samples(
    "ftrl",
    samples=update_samples(
        {"SquaredAccumulator": (0.1, 1), "LinearAccumulator": (-1, 1)},
        {"matrix": {}, "l1": {"l1": 0.5}, "l2": {"l2": 0.7}, "power": {"l1": 0.2, "lr_power": -0.8}},
    ),
)
def _reference_ftrl(inputs: Inputs, attrs: Attrs) -> Outputs:
    l1, l2, power = attrs["l1"] + _FTRL_EPSILON, attrs["l2"] + _FTRL_EPSILON, -attrs["lr_power"]
    old, rate = inputs["SquaredAccumulator"], inputs["LearningRate"]
    total = old + np.square(inputs["Grad"])
    linear = inputs["LinearAccumulator"] + inputs["Grad"] - (total**power - old**power) / rate * inputs["Param"]
    moved = np.clip(linear, -l1, l1) - linear
    return {
        "ParamOut": moved / (total**power / rate + 2 * l2),
        "SquaredAccumOut": total,
        "LinearAccumOut": linear,
    }
