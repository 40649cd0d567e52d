from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.conformance.operators.lstm import ACT
from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Lods, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples

NAMES = ("identity", "sigmoid", "tanh", "relu")


def _step(x: Any, h: Any, weight: Any, gate: Any, act: Any, origin: bool) -> tuple[Any, Any, Any]:
    """The gates, the reset state and the new state of one row."""
    units, flat = len(h), weight.reshape(-1)
    both = gate(x[: 2 * units] + h @ flat[: 2 * units * units].reshape(units, 2 * units))
    update, reset = both[:units], both[units:]
    left = reset * h
    candidate = act(x[2 * units :] + left @ flat[2 * units * units :].reshape(units, units))
    new = update * h + (1 - update) * candidate if origin else (1 - update) * h + update * candidate
    return np.concatenate([both, candidate]), left, new


def _sample(
    name: str,
    offsets: tuple[int, ...],
    units: int = 4,
    states: bool = False,
    bias: bool = True,
    dtypes: tuple[str, ...] = ("float32",),
    **attrs: Any,
) -> Sample:
    inputs = {"Input": rand(offsets[-1], 3 * units, low=-2, high=2), "Weight": rand(units, 3 * units, seed=1)}
    if bias:
        inputs["Bias"] = rand(1, 3 * units, seed=2)
    if states:
        inputs["H0"] = rand(len(offsets) - 1, units, seed=3)
    grads = tuple(slot for slot, array in inputs.items() if array.size)
    return Sample(inputs, attrs, grads, {"Input": (offsets,)}, name, dtypes)


def _samples() -> list[Sample]:
    return [
        _sample("ragged", (0, 2, 5, 8), dtypes=WIDE),
        _sample(
            "reverse_with_states_and_empty_sequences",
            (0, 0, 2, 5, 5, 8),
            states=True,
            bias=False,
            is_reverse=True,
            origin_mode=True,
        ),
        _sample("activations", (0, 3, 5), activation="identity", gate_activation="relu", states=True),
        _sample("one_step", (0, 1), units=1),
        _sample("no_rows", (0, 0), states=True),
    ]


@register_samples("gru", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    """One sequence after another, one step after another."""
    x, weight = inputs["Input"] + inputs.get("Bias", 0.0), inputs["Weight"]
    units = len(weight)
    gate, act = ACT[attrs["gate_activation"]], ACT[attrs["activation"]]
    gates, lefts, hidden, order = np.zeros_like(x), np.zeros((len(x), units)), np.zeros((len(x), units)), []
    for number, (begin, end) in enumerate(pairwise(lod["Input"][-1])):
        h = inputs["H0"][number] if "H0" in inputs else np.zeros(units)
        rows = range(begin, end)
        for step, row in enumerate(reversed(rows) if attrs["is_reverse"] else rows):
            gates[row], lefts[row], h = _step(x[row], h, weight, gate, act, attrs["origin_mode"])
            hidden[row] = h
            order.append((step, begin - end, number, row))
    at = [row for *_, row in sorted(order)]
    return {"BatchGate": gates[at], "BatchResetHiddenPrev": lefts[at], "BatchHidden": hidden[at], "Hidden": hidden}


def _unit(name: str, rows: int, units: int, bias: bool = True, dtypes: Any = ("float32",), **attrs: Any) -> Sample:
    inputs = {
        "Input": rand(rows, 3 * units, low=-2, high=2),
        "HiddenPrev": rand(rows, units, seed=1),
        "Weight": rand(units, 3 * units, seed=2),
    }
    if bias:
        inputs["Bias"] = rand(1, 3 * units, seed=3)
    return Sample(inputs, attrs, tuple(inputs), name=name, dtypes=dtypes)


@register_samples(
    "gru_unit",
    samples=lambda: [
        _unit("rows", 4, 3, dtypes=WIDE),
        _unit("origin", 1, 2, bias=False, origin_mode=True),
        _unit("activations", 3, 2, activation=3, gate_activation=0),
    ],
)
def _reference_unit(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["Input"] + inputs.get("Bias", 0.0)
    gate, act = ACT[NAMES[attrs["gate_activation"]]], ACT[NAMES[attrs["activation"]]]
    rows = [
        _step(row, h, inputs["Weight"], gate, act, attrs["origin_mode"])
        for row, h in zip(x, inputs["HiddenPrev"], strict=True)
    ]
    return {
        slot: np.stack(part)
        for slot, part in zip(("Gate", "ResetHiddenPrev", "Hidden"), zip(*rows, strict=True), strict=True)
    }
