"""Optimisers whose step depends on norms: lars_momentum, lamb, dpsgd.

Each is two operators, which are used nowhere else: one sums squares (and, for lamb, averages), one moves the
parameter. Beside its outputs, which are its inputs, lamb takes as much memory as the parameter has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, compute_dtype
from fluidlite.codegen.expr import logical_and, maximum, sqrt, where
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, all_agree, like, one_number, same_dtype
from fluidlite.operators.optimizers_adaptive import BETAS
from fluidlite.operators.samples import WIDE, rand
from fluidlite.operators.scalar_op import scalar_op
from fluidlite.operators.updates import squares, update_infer, update_samples

Inputs = Mapping[str, Any]
Attrs = Mapping[str, Any]


_ONE_NUMBER = ("LearningRate", "ParamSquares", "GradSquares", "DirectionSquares", "Noise")


def _outputs(updated: Mapping[str, str], sums: Sequence[str] = (), new: str = "") -> Any:
    """Return an inference: some outputs are as inputs, ``sums`` hold one number, ``new`` has the dims of Param."""

    def infer(call: Call) -> Inferred:
        for slot in call.ins:
            if call.dtype(slot) != compute_dtype(call.dtype("Param")):
                same_dtype(call, slot, "Param")
            if slot in _ONE_NUMBER:
                one_number(call, slot)
            elif not all_agree(call.dims(slot), call.dims("Param")):
                call.fail(slot, f"{list(call.dims('Param'))}, the dims of Param")
        dtype = compute_dtype(call.dtype("Param"))
        found = {out: like(call.spec(slot)) for out, slot in updated.items()}
        found |= {slot: Spec.of((1,), dtype) for slot in sums}
        return {**found, new: Spec.of(call.dims("Param"), dtype)} if new else found

    return infer


def _part(type: str, function: Any, outputs: tuple[str, ...], infer: Any, **options: Any) -> None:
    scalar_op(type, function, outputs=outputs, infer=infer, dtypes={"Param": ALL_FLOATS}, **options)


def _sum(value: Any) -> Any:
    return np.asarray([squares(value)])


_PAIR = {"Param": rand(4, 9, seed=1), "Grad": rand(4, 9, seed=2)}
_ONE = np.asarray([1.3], "float32")
_RATE = np.asarray([0.1], "float32")

_part(
    "param_grad_squares",
    lambda param, grad: (param * param, grad * grad),
    ("ParamSquares", "GradSquares"),
    _outputs({}, ("ParamSquares", "GradSquares")),
    may_alias={},
    reference=lambda inputs, attrs: {"ParamSquares": _sum(inputs["Param"]), "GradSquares": _sum(inputs["Grad"])},
    samples=lambda: [Sample(_PAIR, {}, name="matrix", dtypes=WIDE)],
    doc="sums of squares: the first part of lars_momentum and dpsgd",
    memory="where arrays compute, blocks of squares before they are added: 2 MB",
    source="Fluid lars_momentum_op.h",
)

# lars_momentum -----------------------------------------------------------------------------------------------------

_LARS = (
    Attr("mu", "float", doc="what is kept of the velocity"),
    Attr("lars_coeff", "float", 0.001, doc="trust in the ratio of the norms"),
    Attr("lars_weight_decay", "float", 0.0005, doc="how much of Param joins the gradient"),
    Attr("epsilon", "float", 0.0, doc="is added to the divisor"),
)


def _lars_step(
    param: Any, grad: Any, velocity: Any, learning_rate: Any, param_squares: Any, grad_squares: Any,
    *, mu: float, lars_coeff: float, lars_weight_decay: float, epsilon: float,
) -> Any:  # fmt: skip
    p, g = sqrt(param_squares), sqrt(grad_squares)
    trusted = learning_rate * lars_coeff * p / (g + lars_weight_decay * p + epsilon)
    rate = where(logical_and(p > 0, g > 0), trusted, learning_rate)
    speed = mu * velocity + rate * (grad + lars_weight_decay * param)
    return param - speed, speed


def _reference_lars(inputs: Inputs, attrs: Attrs) -> dict[str, Any]:
    p = inputs.get("ParamSquares", _sum(inputs["Param"])) ** 0.5
    g = inputs.get("GradSquares", _sum(inputs["Grad"])) ** 0.5
    decay, rate = attrs["lars_weight_decay"], inputs["LearningRate"]
    if p[0] > 0 and g[0] > 0:
        rate = rate * attrs["lars_coeff"] * p / (g + decay * p + attrs["epsilon"])
    velocity = attrs["mu"] * inputs["Velocity"] + rate * (inputs["Grad"] + decay * inputs["Param"])
    return {"ParamOut": inputs["Param"] - velocity, "VelocityOut": velocity}


_LARS_OUT = {"ParamOut": "Param", "VelocityOut": "Velocity"}
_LARS_USES = {
    "matrix": {"mu": 0.9},
    "attributes": {"mu": 0.5, "lars_coeff": 0.3, "lars_weight_decay": 0.4},
    "epsilon": {"mu": 0.1, "lars_coeff": 0.3, "epsilon": 2.0},
}

_part(
    "lars_momentum_step",
    _lars_step,
    tuple(_LARS_OUT),
    _outputs(_LARS_OUT),
    must_alias=_LARS_OUT,
    attrs=_LARS,
    reference=_reference_lars,
    samples=lambda: [
        Sample({**inputs.inputs, "ParamSquares": _ONE, "GradSquares": _ONE}, inputs.attrs, name=inputs.name)
        for inputs in update_samples({"Velocity": (-1, 1)}, _LARS_USES)()[: len(_LARS_USES)]
    ],
    doc="the step of lars_momentum by given sums of squares",
    source="Fluid lars_momentum_op.h",
)


def _decompose_lars(call: Call, build: Any) -> None:
    param, grad = build.input("Param"), build.input("Grad")
    p, g = build("param_grad_squares", {"Param": param, "Grad": grad}, {"ParamSquares": None, "GradSquares": None})
    given = {slot: build.input(slot) for slot in ("Param", "Grad", "Velocity", "LearningRate")}
    outputs = {slot: build.output(slot) if call.has(slot) else None for slot in _LARS_OUT}
    build("lars_momentum_step", {**given, "ParamSquares": p, "GradSquares": g}, outputs, call.attrs)


def _lars_samples() -> Iterable[Sample]:
    yield from update_samples({"Velocity": (-1, 1)}, _LARS_USES)()
    for slot in ("Param", "Grad"):
        inputs = dict(update_samples({"Velocity": (-1, 1)}, {"first": {}})()[0].inputs)
        inputs[slot] = np.zeros_like(inputs[slot])
        yield Sample(inputs, {"mu": 0.9, "lars_coeff": 0.3}, name=f"zero_{slot.lower()}")


register_op(
    "lars_momentum",
    inputs=("Param", "Grad", "Velocity", "LearningRate"),
    outputs=tuple(_LARS_OUT),
    attrs=_LARS,
    infer=update_infer(("Param", "Grad", "Velocity", "LearningRate"), _LARS_OUT),
    decompose=_decompose_lars,
    must_alias=_LARS_OUT,
    dtypes={"Param": ALL_FLOATS},
    reference=_reference_lars,
    samples=_lars_samples,
    doc="r = LearningRate lars_coeff |Param| / (|Grad| + lars_weight_decay |Param| + epsilon), or LearningRate where a "
    "norm is 0; VelocityOut = mu Velocity + r (Grad + lars_weight_decay Param); ParamOut = Param - VelocityOut",
    source="Fluid lars_momentum_op.h",
)

# lamb --------------------------------------------------------------------------------------------------------------

_LAMB = (
    Attr("weight_decay", "float", doc="how much of Param joins the direction"),
    *BETAS,
    Attr("epsilon", "float", 1e-6, doc="is added to the divisor"),
)
_LAMB_OUT = {"ParamOut": "Param", "Moment1Out": "Moment1", "Moment2Out": "Moment2"}
_MOMENTS = {"Moment1Out": "Moment1", "Moment2Out": "Moment2"}
_LAMB_SUMS = ("ParamSquares", "DirectionSquares")


def _lamb_direction(
    param: Any, grad: Any, moment1: Any, moment2: Any,
    *, weight_decay: float, beta1: float, beta2: float, epsilon: float,
) -> Any:  # fmt: skip
    first = beta1 * moment1 + (1 - beta1) * grad
    second = beta2 * moment2 + (1 - beta2) * grad * grad
    direction = first / (sqrt(second) + epsilon) + weight_decay * param
    return first, second, direction, param * param, direction * direction


def _reference_direction(inputs: Inputs, attrs: Attrs) -> dict[str, Any]:
    first = inputs["Moment1"] * attrs["beta1"] + inputs["Grad"] * (1 - attrs["beta1"])
    second = inputs["Moment2"] * attrs["beta2"] + np.square(inputs["Grad"]) * (1 - attrs["beta2"])
    direction = first / (second**0.5 + attrs["epsilon"]) + attrs["weight_decay"] * inputs["Param"]
    return {
        "Moment1Out": first, "Moment2Out": second, "Direction": direction,
        "ParamSquares": _sum(inputs["Param"]), "DirectionSquares": _sum(direction),
    }  # fmt: skip


def _reference_lamb_step(inputs: Inputs, attrs: Attrs) -> dict[str, Any]:
    p, d = inputs["ParamSquares"], inputs["DirectionSquares"]
    ratio = np.sqrt(p / d) if p[0] > 0 and d[0] > 0 else 1.0
    return {"ParamOut": inputs["Param"] - inputs["LearningRate"] * ratio * inputs["Direction"]}


def _reference_lamb(inputs: Inputs, attrs: Attrs) -> dict[str, Any]:
    found = _reference_direction(inputs, attrs)
    return {**_reference_lamb_step({**inputs, **found}, attrs), **{slot: found[slot] for slot in _MOMENTS}}


_LAMB_STATE = {"Moment1": (-1, 1), "Moment2": (0.1, 1), "Beta1Pow": (0.8, 0.82), "Beta2Pow": (0.9, 0.99)}
_LAMB_USES = {
    "matrix": {"weight_decay": 0.01},
    "attributes": {"weight_decay": 0.5, "beta1": 0.5, "beta2": 0.9, "epsilon": 0.1},
}


def _direction_samples() -> list[Sample]:
    names = ("Param", "Grad", "Moment1", "Moment2")
    made = update_samples(_LAMB_STATE, _LAMB_USES)()[: len(_LAMB_USES)]
    return [Sample({slot: s.inputs[slot] for slot in names}, s.attrs, name=s.name, dtypes=WIDE) for s in made]


_part(
    "lamb_direction",
    _lamb_direction,
    (*_MOMENTS, "Direction", *_LAMB_SUMS),
    _outputs(_MOMENTS, _LAMB_SUMS, "Direction"),
    must_alias=_MOMENTS,
    attrs=_LAMB,
    reference=_reference_direction,
    samples=_direction_samples,
    doc="moments, direction and sums of squares: the first part of lamb",
    source="Fluid lamb_op.h",
)


def _lamb_step(param: Any, direction: Any, learning_rate: Any, param_squares: Any, direction_squares: Any) -> Any:
    both = logical_and(param_squares > 0, direction_squares > 0)
    ratio = where(both, sqrt(param_squares) / sqrt(direction_squares), 1)
    return param - learning_rate * ratio * direction


_part(
    "lamb_step",
    _lamb_step,
    ("ParamOut",),
    _outputs({"ParamOut": "Param"}),
    must_alias={"ParamOut": "Param"},
    reference=_reference_lamb_step,
    samples=lambda: [
        Sample(
            {
                "Param": rand(4, 9, seed=1), "Direction": rand(4, 9, seed=2), "LearningRate": _RATE,
                "ParamSquares": np.asarray([1.7], "float32"), "DirectionSquares": np.asarray([0.6], "float32"),
            },
            {},
            name="matrix",
        )
    ],
    doc="the step of lamb by a given direction and sums of squares",
    source="Fluid lamb_op.h",
)  # fmt: skip


def _decompose_lamb(call: Call, build: Any) -> None:
    given = {slot: build.input(slot) for slot in ("Param", "Grad", "Moment1", "Moment2")}
    moments = {slot: build.output(slot) if call.has(slot) else None for slot in _MOMENTS}
    rest = dict.fromkeys(("Direction", *_LAMB_SUMS))
    *_, direction, p, d = build("lamb_direction", given, {**moments, **rest}, call.attrs)
    inputs = {
        "Param": given["Param"], "Direction": direction, "LearningRate": build.input("LearningRate"),
        "ParamSquares": p, "DirectionSquares": d,
    }  # fmt: skip
    build("lamb_step", inputs, {"ParamOut": build.output("ParamOut") if call.has("ParamOut") else None})


def _lamb_samples() -> Iterable[Sample]:
    yield from update_samples(_LAMB_STATE, _LAMB_USES)()
    for slot in ("Param", "Grad"):
        inputs = dict(update_samples(_LAMB_STATE, {"first": {}})()[0].inputs)
        inputs[slot] = np.zeros_like(inputs[slot])
        yield Sample(inputs, {"weight_decay": 0.1}, name=f"zero_{slot.lower()}")


register_op(
    "lamb",
    inputs=("Param", "Grad", "LearningRate", *_LAMB_STATE),
    outputs=tuple(_LAMB_OUT),
    attrs=_LAMB,
    infer=update_infer(("Param", "Grad", "LearningRate", *_LAMB_STATE), _LAMB_OUT),
    decompose=_decompose_lamb,
    must_alias=_LAMB_OUT,
    dtypes={"Param": ALL_FLOATS},
    reference=_reference_lamb,
    samples=_lamb_samples,
    doc="Moment1Out and Moment2Out as in adam; d = Moment1Out / (sqrt(Moment2Out) + epsilon) + weight_decay Param; "
    "ParamOut = Param - LearningRate |Param| / |d| d, the ratio being 1 where a norm is 0",
    source="Fluid lamb_op.h",
)

# dpsgd -------------------------------------------------------------------------------------------------------------

_DPSGD = (
    Attr("clip", "float", 10.0, doc="greatest norm of Grad"),
    Attr("batch_size", "float", 16.0, doc="divides the noise"),
    Attr("sigma", "float", 1.0, doc="standard deviation of the noise, which is one number for all elements"),
    Attr("seed", "int", 0, doc="0: the program's seed"),
)
_DPSGD_IN = ("Param", "Grad", "LearningRate")


def _dpsgd_step(
    param: Any, grad: Any, learning_rate: Any, grad_squares: Any, noise: Any, *, clip: float, batch_size: float
) -> Any:  # fmt: skip
    scale = maximum(sqrt(grad_squares) / clip, 1)
    return param - learning_rate * (grad / scale + noise / batch_size)


def _reference_dpsgd(inputs: Inputs, attrs: Attrs) -> dict[str, Any]:
    norm = inputs["GradSquares"] ** 0.5
    clipped = inputs["Grad"] * (attrs["clip"] / norm if norm[0] > attrs["clip"] else 1.0)
    return {"ParamOut": inputs["Param"] - inputs["LearningRate"] * (clipped + inputs["Noise"] / attrs["batch_size"])}


_part(
    "dpsgd_step",
    _dpsgd_step,
    ("ParamOut",),
    _outputs({"ParamOut": "Param"}),
    must_alias={"ParamOut": "Param"},
    attrs=_DPSGD[:2],
    reference=_reference_dpsgd,
    samples=lambda: [
        Sample(
            {**_PAIR, "LearningRate": _RATE, "GradSquares": _ONE * 9, "Noise": _ONE}, attrs, name=name
        )
        for name, attrs in (("matrix", {}), ("attributes", {"clip": 0.5, "batch_size": 4.0}))
    ],
    doc="the step of dpsgd by a given sum of squares and noise",
    source="Fluid dpsgd_op.h",
)  # fmt: skip


def _decompose_dpsgd(call: Call, build: Any) -> None:
    given = {slot: build.input(slot) for slot in _DPSGD_IN}
    total = build("param_grad_squares", {"Param": given["Param"], "Grad": given["Grad"]}, {"GradSquares": None})
    dtype = compute_dtype(call.dtype("Param"))
    drawn = {"shape": (1,), "dtype": dtype, "std": call.attr("sigma"), "seed": call.attr("seed")}
    noise = build("gaussian_random", {}, {"Out": None}, drawn)
    attrs = {"clip": call.attr("clip"), "batch_size": call.attr("batch_size")}
    inputs = {**given, "GradSquares": total, "Noise": noise}
    build("dpsgd_step", inputs, {"ParamOut": build.output("ParamOut")}, attrs)


register_op(
    "dpsgd",
    inputs=_DPSGD_IN,
    outputs=("ParamOut",),
    attrs=_DPSGD,
    infer=update_infer(_DPSGD_IN, {"ParamOut": "Param"}),
    decompose=_decompose_dpsgd,
    must_alias={"ParamOut": "Param"},
    random=True,
    dtypes={"Param": ALL_FLOATS},
    samples=lambda: [Sample({**_PAIR, "LearningRate": _RATE}, {}, name="matrix")],
    doc="ParamOut = Param - LearningRate (Grad / max(|Grad| / clip, 1) + n / batch_size), n one normal number of "
    "deviation sigma",
    source="Fluid dpsgd_op.h",
)
