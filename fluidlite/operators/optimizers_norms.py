"""Optimisers whose step depends on norms: lars_momentum, lamb, dpsgd."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, compute_dtype
from fluidlite.expr.declare import operator
from fluidlite.operators.optimizer_update import update_infer
from fluidlite.operators.optimizers_adaptive import BETAS
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Aliasing, Execution, Inference, Lowering
from fluidlite.program.registry import register_op


def _norm(x: e.Tensor) -> e.Tensor:
    return e.sqrt(e.reduce_sum(x * x, keep=True))


def _number(x: e.Tensor, like: e.Tensor) -> e.Tensor:
    """Reshape an operand of one number to broadcast with ``like``."""
    return e.reshape(x, (1,) * like.rank)


# lars_momentum -----------------------------------------------------------------------------------------------------

_LARS_OUT = {"ParamOut": "Param", "VelocityOut": "Velocity"}


@operator(
    "lars_momentum",
    Inference(update_infer(_LARS_OUT)),
    Aliasing(must=_LARS_OUT),
    outputs=tuple(_LARS_OUT),
    attrs=(
        Attr("mu", "float", doc="weight of the old velocity"),
        Attr("lars_coeff", "float", 0.001, doc="trust in the ratio of the norms"),
        Attr("lars_weight_decay", "float", 0.0005, doc="weight of Param in the gradient"),
        Attr("epsilon", "float", 0.0, doc="is added to the divisor"),
    ),
    dtypes={"Param": ALL_FLOATS},
    doc="r = LearningRate lars_coeff |Param| / (|Grad| + lars_weight_decay |Param| + epsilon), or LearningRate where a "
    "norm is 0; VelocityOut = mu Velocity + r (Grad + lars_weight_decay Param); ParamOut = Param - VelocityOut",
    source="Fluid lars_momentum_op.h",
)
def lars_momentum(
    param: e.Tensor,
    grad: e.Tensor,
    velocity: e.Tensor,
    learning_rate: e.Tensor,
    *,
    mu: e.Number,
    lars_coeff: e.Number,
    lars_weight_decay: e.Number,
    epsilon: e.Number,
) -> tuple[e.Tensor, ...]:
    """Scale the learning rate by the ratio of the norms of parameter and gradient."""
    p, g, base_rate = _norm(param), _norm(grad), _number(learning_rate, param)
    scaled_rate = base_rate * lars_coeff * p / (g + lars_weight_decay * p + epsilon)
    rate = e.where(e.logical_and(p > 0, g > 0), scaled_rate, base_rate)
    speed = mu * velocity + rate * (grad + lars_weight_decay * param)
    return param - speed, speed


# lamb --------------------------------------------------------------------------------------------------------------

_LAMB_OUT = {"ParamOut": "Param", "Moment1Out": "Moment1", "Moment2Out": "Moment2"}


@operator(
    "lamb",
    Inference(update_infer(_LAMB_OUT)),
    Aliasing(must=_LAMB_OUT),
    outputs=tuple(_LAMB_OUT),
    attrs=(
        Attr("weight_decay", "float", doc="weight of Param in the direction"),
        *BETAS,
        Attr("epsilon", "float", 1e-6, doc="is added to the divisor"),
    ),
    dtypes={"Param": ALL_FLOATS},
    doc="Moment1Out and Moment2Out as in adam; d = Moment1Out / (sqrt(Moment2Out) + epsilon) + weight_decay Param; "
    "ParamOut = Param - LearningRate |Param| / |d| d, the ratio being 1 where a norm is 0",
    source="Fluid lamb_op.h",
)
def lamb(
    param: e.Tensor,
    grad: e.Tensor,
    learning_rate: e.Tensor,
    moment1: e.Tensor,
    moment2: e.Tensor,
    beta1_pow: e.Tensor,
    beta2_pow: e.Tensor,
    *,
    weight_decay: e.Number,
    beta1: e.Number,
    beta2: e.Number,
    epsilon: e.Number,
) -> tuple[e.Tensor, ...]:
    """As in Fluid, the powers of the betas are inputs that are not used."""
    first = beta1 * moment1 + (1 - beta1) * grad
    second = beta2 * moment2 + (1 - beta2) * grad * grad
    direction = first / (e.sqrt(second) + epsilon) + weight_decay * param
    p, d = _norm(param), _norm(direction)
    ratio = e.where(e.logical_and(p > 0, d > 0), p / d, 1)
    return param - _number(learning_rate, param) * ratio * direction, first, second


# dpsgd -------------------------------------------------------------------------------------------------------------

_CLIP = (
    Attr("clip", "float", 10.0, doc="maximum norm of Grad"),
    Attr("batch_size", "float", 16.0, doc="divides the noise"),
)
_DPSGD_OUT = {"ParamOut": "Param"}


@operator(
    "dpsgd_step",
    Inference(update_infer(_DPSGD_OUT)),
    Aliasing(must=_DPSGD_OUT),
    outputs=tuple(_DPSGD_OUT),
    attrs=_CLIP,
    dtypes={"Param": ALL_FLOATS},
    doc="the step of dpsgd by given noise",
    source="Fluid dpsgd_op.h",
)
def dpsgd_step(
    param: e.Tensor, grad: e.Tensor, learning_rate: e.Tensor, noise: e.Tensor, *, clip: e.Number, batch_size: e.Number
) -> e.Tensor:
    """The step of dpsgd, given its random number."""
    rate, noise_number = _number(learning_rate, param), _number(noise, param)
    factor = 1 / e.maximum(_norm(grad) / clip, 1)  # one division, not one an element
    return param - rate * (grad * factor + noise_number / batch_size)


def _decompose_dpsgd(call: Call, build: Any) -> None:
    noise_attrs = {"shape": (1,), "dtype": compute_dtype(call.dtype("Param")), "std": call.attr("sigma")}
    noise = build("gaussian_random", {}, {"Out": None}, {**noise_attrs, "seed": call.attr("seed")})
    inputs = {slot.name: build.input(slot.name) for slot in call.op.inputs}
    attrs = {attr.name: call.attr(attr.name) for attr in _CLIP}
    build("dpsgd_step", {**inputs, "Noise": noise}, {"ParamOut": build.output("ParamOut")}, attrs)


register_op(
    "dpsgd",
    Inference(update_infer(_DPSGD_OUT)),
    Aliasing(must=_DPSGD_OUT),
    Execution(random=True),
    Lowering(decompose=_decompose_dpsgd),
    inputs=("Param", "Grad", "LearningRate"),
    outputs=tuple(_DPSGD_OUT),
    attrs=(
        *_CLIP,
        Attr("sigma", "float", 1.0, doc="standard deviation of the noise, which is one number for all elements"),
        Attr("seed", "int", 0, doc="0: the program's seed"),
    ),
    dtypes={"Param": ALL_FLOATS},
    doc="ParamOut = Param - LearningRate (Grad / max(|Grad| / clip, 1) + n / batch_size), n one normal number of "
    "deviation sigma",
    source="Fluid dpsgd_op.h",
)
