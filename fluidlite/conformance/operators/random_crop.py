from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


class _Engine:
    """The generator ``minstd_rand`` of C++."""

    def __init__(self, seed: int) -> None:
        self.state = int(np.uint64(seed % 2**64)) % 2147483647 or 1  # unsigned in C++

    def draw(self) -> int:
        self.state = self.state * 48271 % 2147483647
        return self.state


def _seed(number: int) -> Any:
    return np.array([number])


@register_samples(
    "random_crop",
    samples=lambda: [
        Sample({"X": rand(7, 3, 9, 8), "Seed": _seed(11)}, {"shape": [3, 5, 4]}, name="images", dtypes=EVERY),
        Sample({"X": rand(3, 4, 6), "Seed": _seed(-3)}, {"shape": [2], "startup_seed": 5}, name="last_dim"),
        Sample({"X": rand(4, 6), "Seed": _seed(0)}, {"shape": [6]}, name="whole"),
        Sample({"X": rand(0, 4, 6), "Seed": _seed(7)}, {"shape": [3]}, name="empty"),
        Sample(
            {"X": ints(5, 9, high=200, dtype="uint8"), "Seed": _seed(2**40)},
            {"shape": [1]},
            name="uint8",
            dtypes=("uint8",),
        ),
    ],
)
def _reference_random_crop(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, shape, seed = inputs["X"], attrs["shape"], int(inputs["Seed"][0])
    batch = x.shape[: -len(shape)]
    out = np.zeros((*batch, *shape), x.dtype)
    engine = _Engine(seed)
    for where in np.ndindex(batch):
        window = []
        for whole, part in zip(x.shape[-len(shape) :], shape, strict=True):
            share = 2147483645 // (whole - part + 1)
            start = (engine.draw() - 1) // share
            window.append(slice(start, start + part))
        out[where] = x[(*where, *window)]
    return {"Out": out, "SeedOut": np.array([engine.draw()])}
