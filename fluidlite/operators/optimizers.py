"""Optimisers that follow the gradient: sgd, momentum, proximal_gd. Parameter and state are written in place."""

from __future__ import annotations

from typing import Any

from fluidlite.expr import abs_, maximum, sign
from fluidlite.operators.optimizer_update import update
from fluidlite.program.opdef import Attr

# sgd ---------------------------------------------------------------------------------------------------------------

update(
    "sgd",
    lambda param, grad, learning_rate: param - learning_rate * grad,
    {"ParamOut": "Param"},
    doc="ParamOut = Param - LearningRate Grad",
    source="Fluid sgd_op.cc",
)

# momentum ----------------------------------------------------------------------------------------------------------


def _momentum(
    param: Any,
    grad: Any,
    velocity: Any,
    learning_rate: Any,
    *,
    mu: float,
    use_nesterov: bool,
    regularization_method: str,
    regularization_coeff: float,
) -> Any:
    if regularization_method == "l2_decay":
        grad = grad + regularization_coeff * param
    speed = mu * velocity + grad
    if use_nesterov:
        return param - learning_rate * (grad + mu * speed), speed
    return param - learning_rate * speed, speed


update(
    "momentum",
    _momentum,
    {"ParamOut": "Param", "VelocityOut": "Velocity"},
    attrs=(
        Attr("mu", "float", doc="weight of the old velocity"),
        Attr("use_nesterov", "bool", False, doc="take Nesterov's step"),
        Attr("regularization_method", "str", "", choices=("", "l2_decay"), doc="regularisation that is added to Grad"),
        Attr("regularization_coeff", "float", 0.0, doc="with l2_decay, Grad is Grad + regularization_coeff Param"),
    ),
    doc="VelocityOut = mu Velocity + Grad; ParamOut = Param - LearningRate VelocityOut, or by Nesterov's step "
    "Param - LearningRate (Grad + mu VelocityOut)",
    source="Fluid momentum_op.h",
)

# proximal_gd -------------------------------------------------------------------------------------------------------

L1_L2 = (
    Attr("l1", "float", 0.0, doc="weight of the sum of absolute values"),
    Attr("l2", "float", 0.0, doc="weight of the sum of squares"),
)


def proximal_step(param: Any, rate: Any, l1: Any, l2: Any) -> Any:
    """Return the symbol of the proximal step of the two penalties."""
    return sign(param) * maximum(abs_(param) - rate * maximum(l1, 0), 0) / (1 + rate * l2)


update(
    "proximal_gd",
    lambda param, grad, learning_rate, *, l1, l2: proximal_step(param - learning_rate * grad, learning_rate, l1, l2),
    {"ParamOut": "Param"},
    attrs=L1_L2,
    doc="p = Param - LearningRate Grad; ParamOut = sign(p) max(|p| - LearningRate l1, 0) / (1 + LearningRate l2)",
    source="Fluid proximal_gd_op.h",
)
