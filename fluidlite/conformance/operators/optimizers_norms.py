from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fluidlite.conformance.operators.optimizer_update import Ranges, squares, tensors, update_samples
from fluidlite.conformance.sample_helpers import Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _norm(value: Any) -> Any:
    return np.asarray([squares(value) ** 0.5])


def _zeros(state: Ranges, attrs: Attrs) -> Iterable[Sample]:
    """Yield samples with a parameter, and with a gradient, of norm 0."""
    for slot in ("Param", "Grad"):
        inputs = tensors(5, 7, **state)
        inputs[slot] = np.zeros_like(inputs[slot])
        yield Sample(inputs, attrs, name=f"zero_{slot.lower()}")


_INPUTS = {"Param": rand(4, 9, seed=1), "Grad": rand(4, 9, seed=2)}
_NUMBER = np.asarray([1.3], "float32")
_RATE = np.asarray([0.1], "float32")


_LARS_USES = {
    "matrix": {"mu": 0.9},
    "attributes": {"mu": 0.5, "lars_coeff": 0.3, "lars_weight_decay": 0.4},
    "epsilon": {"mu": 0.1, "lars_coeff": 0.3, "epsilon": 2.0},
}


def _lars_samples() -> Iterable[Sample]:
    yield from update_samples({"Velocity": (-1, 1)}, _LARS_USES)()
    yield from _zeros({"Velocity": (-1, 1)}, {"mu": 0.9, "lars_coeff": 0.3})


@register_samples("lars_momentum", samples=_lars_samples)
def _reference_lars(inputs: Inputs, attrs: Attrs) -> Outputs:
    p, g = _norm(inputs["Param"]), _norm(inputs["Grad"])
    decay, rate = attrs["lars_weight_decay"], inputs["LearningRate"]
    if p[0] > 0 and g[0] > 0:
        rate = rate * attrs["lars_coeff"] * p / (g + decay * p + attrs["epsilon"])
    velocity = attrs["mu"] * inputs["Velocity"] + rate * (inputs["Grad"] + decay * inputs["Param"])
    return {"ParamOut": inputs["Param"] - velocity, "VelocityOut": velocity}


_LAMB_STATE = {"Moment1": (-1, 1), "Moment2": (0.1, 1), "Beta1Pow": (0.8, 0.82), "Beta2Pow": (0.9, 0.99)}
_LAMB_USES = {
    "matrix": {"weight_decay": 0.01},
    "attributes": {"weight_decay": 0.5, "beta1": 0.5, "beta2": 0.9, "epsilon": 0.1},
}


def _lamb_samples() -> Iterable[Sample]:
    yield from update_samples(_LAMB_STATE, _LAMB_USES)()
    yield from _zeros(_LAMB_STATE, {"weight_decay": 0.1})


@register_samples("lamb", samples=_lamb_samples)
def _reference_lamb(inputs: Inputs, attrs: Attrs) -> Outputs:
    first = inputs["Moment1"] * attrs["beta1"] + inputs["Grad"] * (1 - attrs["beta1"])
    second = inputs["Moment2"] * attrs["beta2"] + np.square(inputs["Grad"]) * (1 - attrs["beta2"])
    direction = first / (second**0.5 + attrs["epsilon"]) + attrs["weight_decay"] * inputs["Param"]
    p, d = _norm(inputs["Param"]), _norm(direction)
    step = inputs["LearningRate"] * (p / d if p[0] > 0 and d[0] > 0 else 1.0) * direction
    return {"ParamOut": inputs["Param"] - step, "Moment1Out": first, "Moment2Out": second}


@register_samples(
    "dpsgd_step",
    samples=lambda: [
        Sample({**_INPUTS, "LearningRate": _RATE, "Noise": _NUMBER}, attrs, name=name)
        for name, attrs in (("matrix", {}), ("attributes", {"clip": 0.5, "batch_size": 4.0}))
    ],
)
def _reference_dpsgd(inputs: Inputs, attrs: Attrs) -> Outputs:
    norm = _norm(inputs["Grad"])
    clipped = inputs["Grad"] * (attrs["clip"] / norm if norm[0] > attrs["clip"] else 1.0)
    return {"ParamOut": inputs["Param"] - inputs["LearningRate"] * (clipped + inputs["Noise"] / attrs["batch_size"])}


register_samples("dpsgd", samples=lambda: [Sample({**_INPUTS, "LearningRate": _RATE}, {}, name="matrix")])
