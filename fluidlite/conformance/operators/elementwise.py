from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fluidlite.base.dtypes import INTS
from fluidlite.conformance.sample_helpers import (
    EVERY,
    WIDE,
    Attrs,
    Inputs,
    Outputs,
    ints,
    pairwise,
    rand,
    unary_samples,
)
from fluidlite.conformance.samples import Reference, Sample, register_samples


def _samples(
    low: float = 0.3,
    high: float = 2.0,
    grads: tuple[str, ...] = ("X", "Y"),
    integers: bool = True,
    floats: bool = True,
    large: bool = False,
) -> Callable[[], list[Sample]]:
    """Return samples of every form of broadcasting. X and Y differ by 1/32 or more.

    ``large``: also of integers that no float64 is.
    """

    def samples() -> list[Sample]:
        def pair(x: tuple[int, ...], y: tuple[int, ...]) -> dict[str, Any]:
            a, b = rand(*x, low=low, high=high, seed=1), rand(*y, low=low, high=high, seed=2)
            return {"X": np.round(a * 16) / 16, "Y": np.round(b * 16) / 16 + np.float32(0.03125)}

        result = []
        if floats:
            result = [
                Sample(pair((5, 7), (5, 7)), {}, grads, name="same", dtypes=EVERY),
                Sample(pair((1,), (1,)), {}, grads, name="one"),
                Sample(pair((), ()), {}, grads, name="rank0"),
                Sample(pair((3, 4), (1,)), {}, grads, name="scalar_y", dtypes=WIDE),
                Sample(pair((5, 7), (7,)), {}, grads, name="bias", dtypes=EVERY),
                Sample(pair((3, 3), (3,)), {"axis": 0}, grads, name="axis0", dtypes=WIDE),
                Sample(pair((2, 3, 4, 5), (3, 4)), {"axis": 1}, grads, name="middle", dtypes=WIDE),
                Sample(pair((2, 3, 4), (3, 1)), {"axis": 1}, grads, name="trailing_one"),
                Sample(pair((2, 3, 4), (2, 1, 4)), {}, grads, name="inner_one"),
                Sample(pair((4, 3), (1, 3)), {}, grads, name="row"),
                Sample(pair((4, 3), (4, 1)), {}, grads, name="column"),
                Sample(pair((3, 1), (1, 4)), {}, grads, name="both_ones"),
                Sample(pair((4,), (3, 4)), {}, grads, name="small_x", dtypes=WIDE),
                Sample(pair((3,), (2, 3, 4)), {"axis": 1}, grads, name="small_x_axis1"),
                Sample(pair((1,), (3, 2)), {}, grads, name="scalar_x"),
                *(Sample(pair((), (1,) * rank), {}, grads, name=f"rank0_x_{rank}") for rank in (1, 2)),
                Sample(pair((), (3, 2)), {}, grads, name="rank0_x"),
                Sample(pair((3, 2), ()), {}, grads, name="rank0_y"),
                Sample(pair((40, 65), (65,)), {}, name="large", dtypes=WIDE),
                Sample(pair((0, 3), (3,)), {}, name="empty"),
            ]
        if integers:
            for dtype in INTS:
                x, y = ints(4, 5, low=-9, dtype=dtype), ints(4, 5, low=1, high=4, seed=1, dtype=dtype)
                result.append(Sample({"X": x, "Y": y}, {}, name=dtype, dtypes=(dtype,)))
                result.append(Sample({"X": x, "Y": y[:, 0]}, {"axis": 0}, name=dtype + "_axis0", dtypes=(dtype,)))
        if large:
            x = np.asarray([2**53 + 1, -(2**53) - 3, 2**62 + 1, -(2**62) - 5, 7, -7, 7, -7], "int64")
            y = np.asarray([1, 3, -5, 2, 2, 2, -2, -2], "int64")
            result.append(Sample({"X": x, "Y": y}, {}, name="large_int64", dtypes=("int64",)))
        return result

    return samples


def _truncated(x: Any, y: Any) -> Any:
    """Divide; integers truncate toward zero, as C does."""
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y)) if x.dtype.kind in "iu" else x / y


register_samples("elementwise_add", reference=pairwise(np.add), samples=_samples(large=True))
register_samples("elementwise_sub", reference=pairwise(np.subtract), samples=_samples(large=True))
register_samples("elementwise_mul", reference=pairwise(np.multiply), samples=_samples())
register_samples("elementwise_div", reference=pairwise(_truncated), samples=_samples())
register_samples("elementwise_max", reference=pairwise(np.maximum), samples=_samples(-1, 1, large=True))
register_samples("elementwise_min", reference=pairwise(np.minimum), samples=_samples(-1, 1, large=True))
register_samples("elementwise_pow", reference=pairwise(np.power), samples=_samples())


def _mod_samples() -> list[Sample]:
    """Both signs; X is 1/64 or more from a multiple of Y, where the remainder jumps."""

    def signed(array: Any, seed: int) -> Any:
        return np.asarray(np.where(rand(*array.shape, seed=seed) < 0, -array, array), array.dtype)

    result = []
    for sample in _samples(large=True)():
        x, y = sample.inputs["X"], sample.inputs["Y"]
        if x.dtype.kind == "f":
            sample = replace(sample, inputs={"X": signed(x + np.float32(1 / 64), 5), "Y": signed(y, 6)})
        result.append(sample)
    return result


def _integer_division(toward_0: Callable[..., Any], down: Callable[..., Any]) -> Reference:
    """The reference of an integer division that rounds down if ``floor`` is set."""
    both = [pairwise(each) for each in (toward_0, down)]
    return lambda inputs, attrs: both[attrs["floor"]](inputs, attrs)


def _with_floor(samples: Callable[[], list[Sample]]) -> Callable[[], list[Sample]]:
    """All samples, and those of integers also with Y of both signs and floor=True."""

    def rounded_both_ways() -> list[Sample]:
        result = samples()
        for sample in result[:]:
            if sample.inputs["X"].dtype.kind == "i":
                y = sample.inputs["Y"]
                inputs = {**sample.inputs, "Y": np.where(np.arange(y.size).reshape(y.shape) % 2, -y, y)}
                attrs = {**sample.attrs, "floor": True}
                result.append(replace(sample, inputs=inputs, attrs=attrs, name=f"{sample.name}_floor"))
        return result

    return rounded_both_ways


register_samples(
    "elementwise_mod",
    reference=_integer_division(lambda x, y: np.mod(x, y) if x.dtype.kind == "f" else np.fmod(x, y), np.mod),
    samples=_with_floor(_mod_samples),
)
register_samples(
    "elementwise_floordiv",
    reference=_integer_division(_truncated, np.floor_divide),
    samples=_with_floor(_samples(floats=False, grads=(), large=True)),
)


register_samples(
    "minus",
    reference=pairwise(np.subtract),
    samples=lambda: [s for s in _samples(integers=False)() if s.name in ("same", "one", "rank0")],
)


@register_samples(
    "scale",
    samples=lambda: [
        Sample(
            {"X": rand(5, 7), "ScaleTensor": rand(1, low=2, high=3)},
            {"scale": 9.0, "bias": 0.5},
            ("X",),
            name="tensor",
            dtypes=EVERY,
        ),
        Sample(
            {"X": rand(2, 3), "ScaleTensor": rand(1, low=2, high=3)},
            {"bias": 0.5, "bias_after_scale": False},
            ("X",),
            name="tensor_last",
        ),
        Sample({"X": ints(4, 3), "ScaleTensor": np.array([3])}, {"bias": 2.0}, name="tensor_int64", dtypes=("int64",)),
        *unary_samples(
            attrs=(
                {},
                {"scale": 2.5},
                {"bias": -1.0, "scale": 3.0},
                {"scale": 2.0, "bias": 0.5, "bias_after_scale": False},
            )
        )(),
        *(Sample({"X": ints(3, 4, low=-9, dtype=t)}, {"scale": 3.0, "bias": 2.0}, name=t, dtypes=(t,)) for t in INTS),
    ],
)
def _reference_scale(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, s, b = inputs["X"], inputs.get("ScaleTensor", attrs["scale"]), attrs["bias"]
    if x.dtype.kind == "i":  # Fluid casts both to the dtype of X
        s, b = np.trunc(s), np.trunc(b)
    out = x * s + b if attrs["bias_after_scale"] else (x + b) * s
    return {"Out": np.asarray(out, x.dtype)}


@register_samples(
    "increment",
    samples=lambda: [
        Sample({"X": rand(1)}, {}, ("X",), name="one", dtypes=WIDE),
        Sample({"X": rand(1)}, {"step": -2.5}, ("X",), name="step"),
        *(Sample({"X": ints(1, dtype=t)}, {"step": 2.0}, name=t, dtypes=(t,)) for t in INTS),
    ],
)
def _reference_increment(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, step = inputs["X"], attrs["step"]
    return {"Out": np.asarray(x + (np.trunc(step) if x.dtype.kind == "i" else step), x.dtype)}
