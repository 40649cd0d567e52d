from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.operators.optimizer_update import update_samples
from fluidlite.conformance.sample_helpers import Attrs, Inputs, Outputs
from fluidlite.conformance.samples import register_samples

register_samples(
    "sgd",
    reference=lambda inputs, attrs: {"ParamOut": inputs["Param"] - inputs["LearningRate"] * inputs["Grad"]},
    samples=update_samples({}, {"matrix": {}}),
)


@register_samples(
    "momentum",
    samples=update_samples(
        {"Velocity": (-1, 1)},
        {
            "matrix": {"mu": 0.9},
            "nesterov": {"mu": 0.5, "use_nesterov": True},
            "decay": {"mu": 0.5, "regularization_method": "l2_decay", "regularization_coeff": 0.3},
        },
    ),
)
def _reference_momentum(inputs: Inputs, attrs: Attrs) -> Outputs:
    mu, grad, rate = attrs["mu"], inputs["Grad"], inputs["LearningRate"]
    if attrs["regularization_method"] == "l2_decay":
        grad = grad + inputs["Param"] * attrs["regularization_coeff"]
    velocity = mu * inputs["Velocity"] + grad
    step = grad * rate + mu * velocity * rate if attrs["use_nesterov"] else velocity * rate
    return {"ParamOut": inputs["Param"] - step, "VelocityOut": velocity}


def reference_proximal_step(param: Any, rate: Any, l1: float, l2: float) -> Any:
    """Return the proximal step of the two penalties."""
    beyond_l1 = param - np.clip(param, -rate * l1, rate * l1) if l1 > 0 else param
    return beyond_l1 / (1 + rate * l2)


PROXIMAL = {
    "matrix": {},
    "l1": {"l1": 0.9},
    "l2": {"l2": 0.7},
    "both": {"l1": 3.0, "l2": 0.5},
    "below": {"l1": -0.5},
}
"""Attributes of samples."""


register_samples(
    "proximal_gd",
    reference=lambda inputs, attrs: {
        "ParamOut": reference_proximal_step(
            inputs["Param"] - inputs["LearningRate"] * inputs["Grad"], inputs["LearningRate"], attrs["l1"], attrs["l2"]
        )
    },
    samples=update_samples({}, PROXIMAL),
)
