from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Array, Attrs, Inputs, Outputs, away_from, rand
from fluidlite.conformance.samples import Sample, register_samples


def _samples() -> list[Sample]:
    def case(name: str, x: tuple[int, ...], alpha: tuple[int, ...], mode: str | None, dtypes: Any = WIDE) -> Sample:
        inputs: dict[str, Array] = {"X": away_from(rand(*x), 0), "Alpha": rand(*alpha, low=0.1, high=0.9, seed=1)}
        attrs = {} if mode is None else {"mode": mode}
        return Sample(inputs, attrs, ("X", "Alpha") if 0 < np.prod(x) < 1000 else (), name=name, dtypes=dtypes)

    return [
        case("all", (3, 4, 2), (1,), None, EVERY),
        case("channel", (2, 3, 4, 5), (1, 3, 1, 1), "channel", EVERY),
        case("channel_vector", (2, 3, 4, 5), (3,), "channel"),
        case("channel_matrix", (4, 3), (1, 3), "channel"),
        case("channel_more_dims", (2, 3, 4), (1, 3, 1, 1), "channel"),
        case("channel_two_dims", (4, 3), (1, 3, 1, 1), "channel"),
        case("element", (2, 3, 4), (2, 3, 4), "element", EVERY),
        case("element_more_dims", (2, 3, 4), (1, 2, 3, 4), "element"),
        case("element_row", (2, 3, 4), (1, 3, 4), "element"),
        case("element_flat", (3, 2, 2), (4,), "element"),
        case("element_one_row", (1, 3), (3,), "element"),
        case("large", (3, 64, 33), (1, 64, 1), "channel"),
        case("empty", (0, 3, 2), (3,), "channel"),
        case("rank0", (), (1,), "all"),
    ]


@register_samples("prelu", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    dims = {"all": (), "channel": (-1, *(1 for _ in x.shape[2:])), "element": (-1, *x.shape[1:])}
    return {"Out": np.where(x > 0, x, inputs["Alpha"].reshape(dims[attrs["mode"]]) * x)}
