from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _line(seed: int) -> Any:
    return rand(6, low=0.5, high=2, seed=seed)


_STATS = {
    "BatchSize": _line(5) * 16,
    "BatchSum": rand(6, low=-9, high=9, seed=6),
    "BatchSquareSum": _line(7) * 30,
}
_WEIGHTS = {"scale_w": _line(3), "bias": rand(6, seed=4)}
_SCALED: dict[str, Any] = {"enable_scale_and_shift": True}
_SAVED = {"Means": rand(6, seed=1), "Scales": _line(2), "Y@GRAD": rand(5, 6, seed=8)}


def _slots(width: int) -> dict[str, Any]:
    """X with some absent slots."""
    x = rand(5, 6)
    x[::2, ::width] = 0
    return {"X": x}


@register_samples(
    "data_norm",
    samples=lambda: [
        Sample({"X": rand(5, 6), **_STATS}, {}, ("X",), name="rows", dtypes=WIDE),
        Sample({"X": rand(5, 6), **_STATS}, {"data_layout": "NHWC"}, ("X",), name="last"),
        Sample({"X": rand(5, 6), **_STATS, **_WEIGHTS}, _SCALED, ("X", "scale_w", "bias"), name="scaled", dtypes=WIDE),
        Sample({"X": rand(5, 6), **_STATS, **_WEIGHTS}, {}, name="weights_unused"),
        Sample({**_slots(3), **_STATS}, {"slot_dim": 3}, name="slots", dtypes=WIDE),
        Sample({**_slots(2), **_STATS, **_WEIGHTS}, {"slot_dim": 2, **_SCALED}, ("scale_w", "bias"), name="both"),
        Sample({"X": rand(5, 6), **_STATS}, {"slot_dim": 0}, name="no_slots"),
        Sample({"X": rand(5, 6), **_STATS}, {"sync_stats": True, "summary_decay_rate": 0.5}, name="unused"),
        Sample({"X": rand(1, 6), **_STATS}, {}, ("X",), name="one_row"),
        Sample({"X": rand(0, 6), **_STATS}, {"slot_dim": 2}, name="no_samples"),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, width = inputs["X"], attrs["slot_dim"]
    means = inputs["BatchSum"] / inputs["BatchSize"]
    scales = np.sqrt(inputs["BatchSize"] / inputs["BatchSquareSum"])
    y = np.zeros(x.shape)
    for n, c in np.ndindex(*x.shape):
        if width <= 0 or abs(x[n, c - c % width]) >= 1e-7:
            y[n, c] = (x[n, c] - means[c]) * scales[c]
            if attrs["enable_scale_and_shift"]:
                y[n, c] = y[n, c] * inputs["scale_w"][c] + inputs["bias"][c]
    return {"Y": y, "Means": means, "Scales": scales}


@register_samples(
    "data_norm_grad",
    samples=lambda: [
        Sample({"X": rand(5, 6), **_SAVED}, {}, name="rows", dtypes=WIDE),
        Sample({"X": rand(5, 6), **_SAVED}, {"epsilon": 0.001}, name="epsilon"),
        Sample({"X": rand(5, 6), **_WEIGHTS, **_SAVED}, _SCALED, name="scaled"),
        Sample({**_slots(3), **_SAVED}, {"slot_dim": 3}, name="slots", dtypes=WIDE),
        Sample({**_slots(2), **_WEIGHTS, **_SAVED}, {"slot_dim": 2, **_SCALED}, name="both"),
    ],
)
def _reference_grad(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, dy, width, scaled = inputs["X"], inputs["Y@GRAD"], attrs["slot_dim"], attrs["enable_scale_and_shift"]
    apart = x - inputs["Means"]
    present = np.ones(x.shape)
    if width > 0:
        present = np.repeat(np.abs(x[:, ::width]) >= 1e-7, width, axis=1).astype("float64")
    count, total, squares = present.sum(axis=0), (present * x).sum(axis=0), (present * apart * apart).sum(axis=0)
    if width > 0:
        least = np.maximum(count, 1)
        total, squares = total / least, squares / least
    unit = inputs["scale_w"] * present if scaled else 1
    return {
        "X@GRAD": dy * inputs["Scales"] * unit,
        "BatchSize@GRAD": np.minimum(count, 1) if width > 0 else count,
        "BatchSum@GRAD": total,
        "BatchSquareSum@GRAD": squares + count * attrs["epsilon"],
        "scale_w@GRAD": (present * dy * apart * inputs["Scales"]).sum(axis=0),
        "bias@GRAD": (present * dy).sum(axis=0),
    }
