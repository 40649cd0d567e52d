from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Lods, Outputs, rand, sigmoid
from fluidlite.conformance.samples import Sample, register_samples

ACT: dict[str, Callable[[Any], Any]] = {
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "identity": lambda x: x,
}


def _clip(x: Any, limit: float) -> Any:
    return np.clip(x, -limit, limit) if limit else x


def _reference(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    """One sequence after another, one step after another."""
    x, weight, bias, project = inputs["Input"], inputs["Weight"], inputs["Bias"][0], inputs.get("ProjWeight")
    units, width = weight.shape[1] // 4, weight.shape[0]
    gate, act, candidate = (ACT[attrs[f"{name}_activation"]] for name in ("gate", "cell", "candidate"))
    peep = bias[4 * units :].reshape(3, units) if attrs["use_peepholes"] else np.zeros((3, units))
    out, cells = np.zeros((len(x), width)), np.zeros((len(x), units))
    hiddens, gates, order = np.zeros((len(x), units)), np.zeros_like(x), []
    for number, (begin, end) in enumerate(pairwise(lod["Input"][-1])):
        h = inputs["H0"][number] if "H0" in inputs else np.zeros(width)
        c = inputs["C0"][number] if "C0" in inputs else np.zeros(units)
        rows = range(begin, end)
        for step, row in enumerate(reversed(rows) if attrs["is_reverse"] else rows):
            g, i, f, o = np.split(x[row] + h @ weight + bias[: 4 * units], 4)
            g, i, f = candidate(g), gate(i + peep[0] * c), gate(f + peep[1] * c)
            c = _clip(g * i + c * f, attrs["cell_clip"])
            o = gate(o + peep[2] * c)
            h = o * act(c)
            hiddens[row], cells[row], gates[row] = h, c, np.concatenate([g, i, f, o])
            if project is not None:
                h = _clip(ACT[attrs["proj_activation"]](h @ project), attrs["proj_clip"])
            out[row] = h
            order.append((step, begin - end, number, row))
    by_step = [row for *_, row in sorted(order)]
    outputs = {"Cell": cells, "BatchGate": gates[by_step], "BatchCellPreAct": cells[by_step]}
    if project is None:
        return {"Hidden": out, **outputs}
    return {"Projection": out, **outputs, "BatchHidden": hiddens[by_step]}


def _sample(
    name: str,
    offsets: tuple[int, ...],
    units: int = 4,
    width: int = 0,
    states: bool = False,
    dtypes: tuple[str, ...] = ("float32",),
    **attrs: Any,
) -> Sample:
    peepholes, count = attrs.get("use_peepholes", True), len(offsets) - 1
    inputs = {
        "Input": rand(offsets[-1], 4 * units, low=-2, high=2),
        "Weight": rand(width or units, 4 * units, seed=1),
        "Bias": rand(1, (7 if peepholes else 4) * units, seed=2),
    }
    if width:
        inputs["ProjWeight"] = rand(units, width, seed=3)
    if states:
        inputs |= {"H0": rand(count, width or units, seed=4), "C0": rand(count, units, seed=5)}
    grads = tuple(slot for slot, array in inputs.items() if array.size)
    return Sample(inputs, attrs, grads, {"Input": (offsets,)}, name, dtypes)


def _samples() -> list[Sample]:
    return [
        _sample("ragged", (0, 2, 5, 8), dtypes=WIDE),
        _sample(
            "reverse_with_states_and_empty_sequences",
            (0, 0, 2, 5, 5, 8),
            states=True,
            is_reverse=True,
            use_peepholes=False,
        ),
        _sample(
            "activations", (0, 3, 5), gate_activation="identity", cell_activation="relu", candidate_activation="sigmoid"
        ),
        _sample("clipped", (0, 3, 6), cell_clip=0.3, cell_activation="identity", states=True),
        _sample("one_step", (0, 1), units=1),
        _sample("no_rows", (0, 0, 0), states=True),
    ]


def _samples_projected() -> list[Sample]:
    return [
        _sample("ragged", (0, 2, 5, 8), width=2, dtypes=WIDE),
        _sample(
            "reverse_with_states",
            (0, 0, 2, 4),
            width=4,
            states=True,
            is_reverse=True,
            gate_activation="tanh",
            cell_activation="sigmoid",
            candidate_activation="identity",
            proj_activation="identity",
            use_peepholes=False,
            proj_clip=0.2,
            cell_clip=0.5,
        ),
    ]


register_samples("lstm", reference=_reference, samples=_samples)
register_samples("lstmp", reference=_reference, samples=_samples_projected)
