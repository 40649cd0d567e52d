from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, rand, sigmoid
from fluidlite.conformance.samples import Sample, register_samples


def _sample(
    name: str,
    steps: int,
    batch: int,
    width: int,
    hidden: int,
    layers: int = 1,
    ways: int = 1,
    states: bool = True,
    dtypes: tuple[str, ...] = ("float32",),
    **attrs: Any,
) -> Sample:
    widths = [width, *[hidden * ways] * (layers - 1)]
    size = sum(ways * 4 * hidden * (each + hidden + 2) for each in widths)
    inputs = {"Input": rand(steps, batch, width), "W": rand(size, seed=1)}
    if states:
        inputs |= {
            "InitH": rand(layers * ways, batch, hidden, seed=2),
            "InitC": rand(layers * ways, batch, hidden, seed=3),
        }
    return Sample(
        inputs,
        {"hidden_size": hidden, "num_layers": layers, "is_bidirec": ways == 2, **attrs},
        tuple(inputs),
        name=name,
        dtypes=dtypes,
    )


@register_samples(
    "cudnn_lstm",
    samples=lambda: [
        _sample("one_layer", 3, 2, 3, 2, dtypes=WIDE, states=False),
        _sample("both_ways_two_layers", 3, 2, 3, 2, 2, 2, dropout_prob=1.0, is_test=True),
        _sample("drops_all", 2, 1, 2, 2, 2, dropout_prob=1.0),
        _sample("one_step", 1, 1, 1, 1, 2),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    """Layer by layer, direction by direction, step by step; W has all weights in order, then all biases."""
    x, w = inputs["Input"], inputs["W"]
    hidden, ways = attrs["hidden_size"], 2 if attrs["is_bidirec"] else 1
    steps, batch, _ = x.shape
    count = attrs["num_layers"] * ways
    weights, biases = w[: len(w) - count * 8 * hidden], w[len(w) - count * 8 * hidden :].reshape(count, 8, hidden)
    last_h, last_c = np.zeros((2, count, batch, hidden))
    reserve: list[Any] = []
    if not attrs["is_test"] and attrs["dropout_prob"] not in (0.0, 1.0):
        raise ValueError("cudnn_lstm's reference is for what is not random")
    factor = 1.0 if attrs["is_test"] or attrs["dropout_prob"] == 0 else 0.0
    for number in range(count):
        if number % ways == 0:
            below, x = x * (factor if number else 1.0), np.zeros((steps, batch, hidden * ways))
        size = 4 * hidden * below.shape[2]
        a, weights = weights[:size].reshape(4 * hidden, -1), weights[size:]
        r, weights = weights[: 4 * hidden**2].reshape(4 * hidden, hidden), weights[4 * hidden**2 :]
        bias = biases[number].reshape(2, -1).sum(0)
        h = inputs["InitH"][number] if "InitH" in inputs else np.zeros((batch, hidden))
        c = inputs["InitC"][number] if "InitC" in inputs else np.zeros((batch, hidden))
        backward = number % ways == 1
        parts: tuple[list[Any], ...] = ([], [], [])
        for t in reversed(range(steps)) if backward else range(steps):
            i, f, g, o = np.split(below[t] @ a.T + h @ r.T + bias, 4, axis=1)
            i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
            c = f * c + i * g
            h = o * np.tanh(c)
            for part, step_values in zip(parts, (np.concatenate([g, i, f, o], 1), c, h), strict=True):
                part.append(step_values)
            x[t, :, hidden * backward : hidden * (1 + backward)] = h
        last_h[number], last_c[number] = h, c
        reserve += [np.concatenate(part[::-1] if backward else part) for part in parts]
    reserve += [np.full((steps * batch, hidden * ways), factor)] * (attrs["num_layers"] - 1)
    return {"Out": x, "last_h": last_h, "last_c": last_c, "Reserve": reserve}
