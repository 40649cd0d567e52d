"""Optimisers with a rate for each element: adam, adamax, adagrad and its variants, adadelta, rmsprop, ftrl."""

from __future__ import annotations

from typing import Any

from fluidlite.expr import abs_, maximum, pow_, sign, sqrt, where
from fluidlite.operators.optimizer_update import update
from fluidlite.operators.optimizers import L1_L2, proximal_step
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr

BETAS = (
    Attr("beta1", "float", 0.9, doc="weight of the old first moment"),
    Attr("beta2", "float", 0.999, doc="weight of the old second moment"),
)

# adam --------------------------------------------------------------------------------------------------------------


def _adam(
    param: Any,
    grad: Any,
    learning_rate: Any,
    moment1: Any,
    moment2: Any,
    beta1_pow: Any,
    beta2_pow: Any,
    beta1_tensor: Any,
    beta2_tensor: Any,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> Any:
    b1 = beta1 if beta1_tensor is None else beta1_tensor
    b2 = beta2 if beta2_tensor is None else beta2_tensor
    first = b1 * moment1 + (1 - b1) * grad
    second = b2 * moment2 + (1 - b2) * grad * grad
    rate = learning_rate * sqrt(1 - beta2_pow) / (1 - beta1_pow)
    return param - rate * (first / (sqrt(second) + epsilon)), first, second, beta1_pow * b1, beta2_pow * b2


update(
    "adam",
    _adam,
    {
        "ParamOut": "Param",
        "Moment1Out": "Moment1",
        "Moment2Out": "Moment2",
        "Beta1PowOut": "Beta1Pow",
        "Beta2PowOut": "Beta2Pow",
    },
    attrs=(
        *BETAS,
        Attr("epsilon", "float", 1e-8),
        Attr("lazy_mode", "bool", False, doc="of no effect on dense gradients"),
        Attr("min_row_size_to_use_multithread", "int", 1000, doc="of no effect"),
    ),
    optional=("Beta1Tensor", "Beta2Tensor", "Beta1PowOut", "Beta2PowOut"),
    doc="Moment1Out = beta1 Moment1 + (1 - beta1) Grad; Moment2Out = beta2 Moment2 + (1 - beta2) Grad^2; "
    "ParamOut = Param - LearningRate sqrt(1 - Beta2Pow) / (1 - Beta1Pow) Moment1Out / (sqrt(Moment2Out) + epsilon); "
    "Beta1PowOut = beta1 Beta1Pow and Beta2PowOut = beta2 Beta2Pow, if they are requested",
    source="Fluid adam_op.h",
)

# adamax ------------------------------------------------------------------------------------------------------------


def _adamax(
    param: Any,
    grad: Any,
    learning_rate: Any,
    moment: Any,
    inf_norm: Any,
    beta1_pow: Any,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> Any:
    first = beta1 * moment + (1 - beta1) * grad
    largest = maximum(abs_(grad), beta2 * inf_norm + epsilon)
    return param - learning_rate / (1 - beta1_pow) * (first / largest), first, largest


update(
    "adamax",
    _adamax,
    {"ParamOut": "Param", "MomentOut": "Moment", "InfNormOut": "InfNorm"},
    attrs=(*BETAS, Attr("epsilon", "float", 1e-8)),
    doc="MomentOut = beta1 Moment + (1 - beta1) Grad; InfNormOut = max(beta2 InfNorm + epsilon, |Grad|); "
    "ParamOut = Param - LearningRate / (1 - Beta1Pow) MomentOut / InfNormOut",
    source="Fluid adamax_op.h",
)

# adagrad, decayed_adagrad, proximal_adagrad ------------------------------------------------------------------------


def _adagrad(param: Any, grad: Any, moment: Any, learning_rate: Any, *, epsilon: float) -> Any:
    total = moment + grad * grad
    return param - learning_rate * grad / (sqrt(total) + epsilon), total


_MOMENT = {"ParamOut": "Param", "MomentOut": "Moment"}

update(
    "adagrad",
    _adagrad,
    _MOMENT,
    attrs=(Attr("epsilon", "float", 1e-6),),
    doc="MomentOut = Moment + Grad^2; ParamOut = Param - LearningRate Grad / (sqrt(MomentOut) + epsilon)",
    source="Fluid adagrad_op.h",
)


def _decayed_adagrad(param: Any, grad: Any, moment: Any, learning_rate: Any, *, decay: float, epsilon: float) -> Any:
    average = decay * moment + (1 - decay) * grad * grad
    return param - learning_rate * grad / (sqrt(average) + epsilon), average


update(
    "decayed_adagrad",
    _decayed_adagrad,
    _MOMENT,
    attrs=(Attr("decay", "float", 0.95), Attr("epsilon", "float", 1e-6)),
    doc="MomentOut = decay Moment + (1 - decay) Grad^2; "
    "ParamOut = Param - LearningRate Grad / (sqrt(MomentOut) + epsilon)",
    source="Fluid decayed_adagrad_op.h",
)


def _proximal_adagrad(param: Any, moment: Any, grad: Any, learning_rate: Any, *, l1: float, l2: float) -> Any:
    total = moment + grad * grad
    return proximal_step(param - learning_rate * grad / sqrt(total), learning_rate, l1, l2), total


update(
    "proximal_adagrad",
    _proximal_adagrad,
    _MOMENT,
    attrs=L1_L2,
    doc="MomentOut = Moment + Grad^2; p = Param - LearningRate Grad / sqrt(MomentOut); "
    "ParamOut = sign(p) max(|p| - LearningRate l1, 0) / (1 + LearningRate l2). As in Fluid nothing is added to the "
    "divisor: where Moment and Grad are 0, ParamOut is NaN",
    source="Fluid proximal_adagrad_op.h",
)

# adadelta ----------------------------------------------------------------------------------------------------------


def _adadelta(
    param: Any, grad: Any, avg_squared_grad: Any, avg_squared_update: Any, *, rho: float, epsilon: float
) -> Any:
    grads = rho * avg_squared_grad + (1 - rho) * grad * grad
    step = sqrt((avg_squared_update + epsilon) / (grads + epsilon)) * grad
    return param - step, grads, rho * avg_squared_update + (1 - rho) * step * step


update(
    "adadelta",
    _adadelta,
    {"ParamOut": "Param", "AvgSquaredGradOut": "AvgSquaredGrad", "AvgSquaredUpdateOut": "AvgSquaredUpdate"},
    attrs=(Attr("rho", "float", 0.95), Attr("epsilon", "float", 1e-6)),
    doc="AvgSquaredGradOut = rho AvgSquaredGrad + (1 - rho) Grad^2; "
    "u = sqrt((AvgSquaredUpdate + epsilon) / (AvgSquaredGradOut + epsilon)) Grad; ParamOut = Param - u; "
    "AvgSquaredUpdateOut = rho AvgSquaredUpdate + (1 - rho) u^2",
    source="Fluid adadelta_op.h",
)

# rmsprop -----------------------------------------------------------------------------------------------------------


def _rmsprop(
    param: Any,
    mean_square: Any,
    mean_grad: Any,
    learning_rate: Any,
    grad: Any,
    moment: Any,
    *,
    epsilon: float,
    decay: float,
    momentum: float,
    centered: bool,
) -> Any:
    square = decay * mean_square + (1 - decay) * grad * grad
    mean, variance = 0 if mean_grad is None else mean_grad, square
    if centered:
        mean = decay * mean_grad + (1 - decay) * grad
        variance = square - mean * mean
    speed = momentum * moment + learning_rate * grad / sqrt(variance + epsilon)
    return param - speed, speed, square, mean


def _check_rmsprop(call: Call) -> None:
    if call.attr("centered") and not call.has("MeanGrad"):
        call.fail("MeanGrad", "the moving average of Grad, for the attribute centered is True")


update(
    "rmsprop",
    _rmsprop,
    {"ParamOut": "Param", "MomentOut": "Moment", "MeanSquareOut": "MeanSquare", "MeanGradOut": "MeanGrad"},
    attrs=(
        Attr("epsilon", "float", 1e-10),
        Attr("decay", "float", 0.9),
        Attr("momentum", "float", 0.0),
        Attr("centered", "bool", False, doc="the mean of the gradient is subtracted, and MeanGrad must be given"),
    ),
    optional=("MeanGrad", "MeanGradOut"),
    check=_check_rmsprop,
    doc="MeanSquareOut = decay MeanSquare + (1 - decay) Grad^2; v = MeanSquareOut, or, centered, "
    "MeanGradOut = decay MeanGrad + (1 - decay) Grad and v = MeanSquareOut - MeanGradOut^2; "
    "MomentOut = momentum Moment + LearningRate Grad / sqrt(v + epsilon); ParamOut = Param - MomentOut",
    source="Fluid rmsprop_op.h",
)

# ftrl --------------------------------------------------------------------------------------------------------------

_FTRL_EPSILON = 1e-10
"""Fluid adds it to l1 and l2."""


def _ftrl(
    param: Any,
    squared_accumulator: Any,
    linear_accumulator: Any,
    grad: Any,
    learning_rate: Any,
    *,
    l1: float,
    l2: float,
    lr_power: float,
) -> Any:
    total = squared_accumulator + grad * grad
    power, before = (sqrt(x) if lr_power == -0.5 else pow_(x, -lr_power) for x in (total, squared_accumulator))
    linear = linear_accumulator + grad - (power - before) / learning_rate * param
    bound = l1 + _FTRL_EPSILON
    shrinking = (bound * sign(linear) - linear) / (power / learning_rate + 2 * (l2 + _FTRL_EPSILON))
    return where(abs_(linear) > bound, shrinking, 0), total, linear


update(
    "ftrl",
    _ftrl,
    {"ParamOut": "Param", "SquaredAccumOut": "SquaredAccumulator", "LinearAccumOut": "LinearAccumulator"},
    attrs=(*L1_L2, Attr("lr_power", "float", -0.5, static=True, doc="power of the accumulated squares, negated")),
    doc="SquaredAccumOut = n = SquaredAccumulator + Grad^2; with s = -lr_power, LinearAccumOut = z = "
    "LinearAccumulator + Grad - (n^s - SquaredAccumulator^s) / LearningRate Param; ParamOut = "
    "(l1 sign(z) - z) / (n^s / LearningRate + 2 l2) where |z| > l1, else 0; as in Fluid, l1 and l2 are 1e-10 above the "
    "attributes",
    source="Fluid ftrl_op.h",
)
