from __future__ import annotations

from math import erf as exact_erf, erfc as exact_erfc, factorial, sqrt as root
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, Attrs, Inputs, Outputs, away_from, point, rand, unary_samples
from fluidlite.conformance.samples import Sample, register_samples


def _tanh_shrink_reference(x: Any) -> Any:
    """Near 0 by the series of (x cosh(x) - sinh(x)) / cosh(x): all terms have one sign, so that none cancel."""
    near = np.clip(x, -1.0, 1.0)
    series = sum(2 * k / factorial(2 * k + 1) * near ** (2 * k + 1) for k in range(1, 12))
    return np.where(np.abs(x) < 1, series / np.cosh(near), x - np.tanh(x))


def _sigmoid_reference(x: Any) -> Any:
    return np.exp(-np.logaddexp(0.0, -x))


register_samples("relu", reference=point(lambda x: np.maximum(x, 0.0)), samples=unary_samples(avoid=(0,)))
register_samples("sigmoid", reference=point(_sigmoid_reference), samples=unary_samples(-6, 6))
register_samples("logsigmoid", reference=point(lambda x: -np.logaddexp(0.0, -x)), samples=unary_samples(-6, 6))
register_samples("tanh", reference=point(np.tanh), samples=unary_samples())
register_samples("tanh_shrink", reference=point(_tanh_shrink_reference), samples=unary_samples())
register_samples("exp", reference=point(np.exp), samples=unary_samples())
register_samples("log", reference=point(np.log), samples=unary_samples(0.2, 3))
register_samples("sqrt", reference=point(np.sqrt), samples=unary_samples(0.2, 3))
register_samples("square", reference=point(np.square), samples=unary_samples())
register_samples("abs", reference=point(np.abs), samples=unary_samples(avoid=(0,)))
register_samples("reciprocal", reference=point(np.reciprocal), samples=unary_samples(0.3, 2))
register_samples("softplus", reference=point(lambda x: np.logaddexp(0.0, x)), samples=unary_samples(-6, 6))
register_samples("softsign", reference=point(lambda x: x / (1 + np.abs(x))), samples=unary_samples())
register_samples("sin", reference=point(np.sin), samples=unary_samples(-4, 4))
register_samples("cos", reference=point(np.cos), samples=unary_samples(-4, 4))


_INSIDE = unary_samples(-0.95, 0.95)


register_samples("asin", reference=point(np.arcsin), samples=_INSIDE)
register_samples("acos", reference=point(np.arccos), samples=_INSIDE)
register_samples("atan", reference=point(np.arctan), samples=unary_samples(-4, 4))
register_samples("sinh", reference=point(np.sinh), samples=unary_samples())
register_samples("cosh", reference=point(np.cosh), samples=unary_samples())
register_samples("rsqrt", reference=point(lambda x: 1 / np.sqrt(x)), samples=unary_samples(0.3, 3))
register_samples("log1p", reference=point(np.log1p), samples=unary_samples(-0.7, 3))


def _erf_reference(x: Any) -> Any:
    return np.asarray([exact_erf(v) for v in x.reshape(-1)]).reshape(x.shape)


register_samples("erf", reference=point(_erf_reference), samples=unary_samples())


_STEPS = unary_samples(-2.4, 2.4, avoid=(-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2))


register_samples("floor", reference=point(np.floor), samples=_STEPS)
register_samples("ceil", reference=point(np.ceil), samples=_STEPS)
register_samples("round", samples=_STEPS, reference=point(lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5)))
register_samples("sign", reference=point(np.sign), samples=unary_samples(avoid=(0,)))


register_samples(
    "leaky_relu",
    reference=point(lambda x, alpha: np.maximum(x, alpha * x)),
    samples=unary_samples(avoid=(0,), attrs=({}, {"alpha": 0.3})),
)


register_samples(
    "elu",
    reference=point(lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))),
    samples=unary_samples(avoid=(0,), attrs=({}, {"alpha": 0.4})),
)


@register_samples(
    "pow",
    samples=lambda: [
        *unary_samples(0.3, 2, attrs=({}, {"factor": 2.5}, {"factor": -1.0}))(),
        Sample(
            {"X": rand(5, 7, low=0.3, high=2), "FactorTensor": rand(1, low=2, high=3)},
            {"factor": 9.0},
            ("X",),
            name="factor_tensor",
            dtypes=EVERY,
        ),
    ],
)
def _pow_reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    factor = inputs["FactorTensor"].reshape(()) if "FactorTensor" in inputs else attrs["factor"]
    return {"Out": np.power(inputs["X"], factor)}


register_samples(
    "relu6",
    reference=point(lambda x, threshold: np.clip(x, 0, threshold)),
    samples=unary_samples(-3, 9, avoid=(0, 2, 6), attrs=({}, {"threshold": 2.0})),
)


register_samples(
    "brelu",
    reference=point(lambda x, t_min, t_max: np.minimum(np.maximum(x, t_min), t_max)),
    samples=unary_samples(-3, 30, avoid=(0, 1, 8, 24), attrs=({}, {"t_min": 1.0}, {"t_max": 8.0})),
)


def _clip_samples() -> list[Sample]:
    far, attrs = (-1, -0.5, 0.5, 1), {"min": -0.5, "max": 1.0}
    low, high = np.asarray([-1.0], "float32"), np.asarray([0.5], "float32")
    x = away_from(rand(5, 7, low=-2, high=2), *far)
    return [
        *unary_samples(avoid=far, attrs=(attrs, {"min": -1.0, "max": 0.5}))(),
        Sample({"X": x, "Min": low, "Max": high}, attrs, ("X",), name="tensors", dtypes=EVERY),
        Sample({"X": x, "Min": low}, attrs, ("X",), name="min_tensor"),
        Sample({"X": x, "Max": high}, attrs, ("X",), name="max_tensor"),
    ]


@register_samples("clip", samples=_clip_samples)
def _clip_reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    low, high = inputs.get("Min", attrs["min"]), inputs.get("Max", attrs["max"])
    return {"Out": np.where(inputs["X"] > high, high, np.where(inputs["X"] < low, low, inputs["X"]))}


register_samples(
    "straight_through_max",
    reference=lambda inputs, attrs: {"Out": np.maximum(inputs["X"], attrs["value"])},
    samples=lambda: [
        *unary_samples(-1, 2, attrs=({"value": -1.5},))(),
        Sample({"X": rand(5, 7, low=-2, high=2)}, {"value": 0.25}, name="below", dtypes=EVERY),
        Sample({"X": np.asarray([np.nan, np.inf, -np.inf, -0.0], "float32")}, {"value": 0.0}, name="special"),
    ],
)


register_samples(
    "soft_relu",
    reference=point(lambda x, threshold: np.log1p(np.exp(np.clip(x, -threshold, threshold)))),
    samples=unary_samples(avoid=(-1, 1), attrs=({}, {"threshold": 1.0})),
)


register_samples(
    "stanh",
    reference=point(lambda x, scale_a, scale_b: scale_b * np.tanh(scale_a * x)),
    samples=unary_samples(attrs=({}, {"scale_a": 0.9}, {"scale_b": 1.2})),
)


register_samples(
    "hard_sigmoid",
    reference=point(lambda x, slope, offset: np.clip(slope * x + offset, 0, 1)),
    samples=unary_samples(
        -4, 4, avoid=(-2.5, -2, 0.8, 1.25, -1.25, 2.5, 3), attrs=({}, {"slope": 0.4}, {"offset": 0.4})
    ),
)


register_samples(
    "hard_shrink",
    reference=point(lambda x, threshold: x * (np.abs(x) > threshold)),
    samples=unary_samples(avoid=(-1, -0.5, 0.5, 1), attrs=({}, {"threshold": 1.0})),
)


register_samples(
    "thresholded_relu",
    reference=point(lambda x, threshold: x * (x > threshold)),
    samples=unary_samples(avoid=(-0.5, 1), attrs=({}, {"threshold": -0.5})),
)


register_samples(
    "softshrink",
    reference=lambda inputs, attrs: {
        "Out": np.sign(inputs["X"]) * np.maximum(np.abs(inputs["X"]) - attrs["lambda"], 0)
    },
    samples=unary_samples(avoid=(-1, -0.5, 0.5, 1), attrs=({}, {"lambda": 1.0})),
)


register_samples(
    "hard_swish",
    reference=point(lambda x, threshold, scale, offset: x * np.clip(x + offset, 0, threshold) / scale),
    samples=unary_samples(
        -5, 5, avoid=(-3, 3, -2, 4, 1), attrs=({}, {"threshold": 4.0}, {"scale": 3.0}, {"offset": 2.0})
    ),
)


def _mish_reference(x: Any, threshold: float) -> Any:
    soft = np.where(x > threshold, x, np.where(x < -threshold, np.exp(x), np.logaddexp(0, x)))
    return x * np.tanh(soft)


register_samples(
    "mish",
    reference=point(_mish_reference),
    samples=unary_samples(-6, 6, avoid=(-1, 1), attrs=({}, {"threshold": 1.0})),
)


register_samples(
    "selu",
    reference=point(lambda x, scale, alpha: scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))),
    samples=unary_samples(avoid=(0,), attrs=({}, {"scale": 1.5}, {"alpha": 0.7}, {"scale": -1.5})),
)


register_samples(
    "swish",
    reference=point(lambda x, beta: x * _sigmoid_reference(beta * x)),
    samples=unary_samples(attrs=({}, {"beta": 2.0}, {"beta": -0.5})),
)


def _gelu_reference(x: Any, approximate: bool) -> Any:
    if approximate:
        return x * _sigmoid_reference(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * np.asarray([exact_erfc(v) for v in (-x / root(2)).reshape(-1)]).reshape(x.shape)


register_samples("gelu", reference=point(_gelu_reference), samples=unary_samples(attrs=({}, {"approximate": True})))
