"""Gradients of normalisations that differences cannot check: sums of a batch, and vectors that are iterated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.conformance.sample_helpers import rand
from fluidlite.conformance.samples import Sample
from fluidlite.program.registry import ops
from fluidlite.testing import Case, check_sample

PLACES = [str(place) for place in fluid.places()]
SUMS = ("BatchSize", "BatchSum", "BatchSquareSum")
GRADS = tuple(f"{slot}@GRAD" for slot in ("X", *SUMS))


def shown(width: int) -> dict[str, Any]:
    """Rows of which each other one lacks its slots."""
    x = rand(5, 6)
    x[::2, ::width] = 0
    return {"X": x}


BACK = {
    "Y@GRAD": rand(5, 6, seed=8), "Means": rand(6, seed=1), "Scales": rand(6, low=0.5, high=2, seed=2),
}  # fmt: skip
WEIGHTS = {"scale_w": rand(6, low=0.5, high=2, seed=3), "bias": rand(6, seed=4)}
SLOTS: dict[str, Any] = {"slot_dim": 2, "enable_scale_and_shift": True}
VECTORS = {"U": rand(3, low=0.2, seed=1), "V": rand(8, low=0.2, seed=2)}
FILTER = {"Weight": rand(4, 3, 2, low=0.2), **VECTORS, "Out@GRAD": rand(4, 3, 2, seed=3)}

CASES: list[tuple[str, str, Sample]] = [
    ("data_norm_grad", "rows", Sample({"X": rand(5, 6), **BACK}, {"epsilon": 0.001}, outputs=GRADS)),
    ("data_norm_grad", "slots", Sample({**shown(3), **BACK}, {"slot_dim": 3, "epsilon": 0.001}, outputs=GRADS)),
    ("data_norm_grad", "learned slots", Sample({**shown(2), **BACK, **WEIGHTS}, SLOTS)),
    ("data_norm_grad", "never shown",
     Sample({"X": np.zeros((5, 6), "float32"), **BACK}, {"slot_dim": 2}, outputs=GRADS)),
    ("data_norm_grad", "X alone", Sample({"X": rand(5, 6), **BACK}, outputs=("X@GRAD",))),
    ("data_norm_grad", "one sum", Sample({"X": rand(5, 6), **BACK}, outputs=("BatchSum@GRAD",))),
    ("spectral_norm_grad", "filter", Sample(FILTER, {"dim": 1, "power_iters": 4})),
    ("spectral_norm_grad", "as given", Sample(FILTER, {"dim": 1, "power_iters": 0, "eps": 0.1})),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("type", "name", "sample"), CASES, ids=[f"{type} {name}" for type, name, _ in CASES])
def test_gradient(place: str, dtype: str, type: str, name: str, sample: Sample) -> None:
    check_sample(Case(ops.get(type), sample, name, dtype), place)


@pytest.mark.parametrize("place", PLACES)
def test_iterated_vectors_come_to_the_singular_value(place: str) -> None:
    """Then the gradient is that of Weight / its largest singular value, by differences in float64."""
    rng = np.random.default_rng(0)
    weight, given = rng.normal(size=(5, 4)), rng.normal(size=(5, 4))
    feed = {"Weight": weight, "U": rng.normal(size=5), "V": rng.normal(size=4), "Out@GRAD": given}
    block = fluid.Program().global_block()
    inputs = {slot: block.create_var(slot, array.shape, "float64", is_data=True) for slot, array in feed.items()}
    out, grad = block.create_var("out"), block.create_var("grad")
    forward = {slot: inputs[slot] for slot in ("Weight", "U", "V")}
    block.append_op("spectral_norm", forward, {"Out": out}, {"power_iters": 200})
    block.append_op("spectral_norm_grad", inputs, {"Weight@GRAD": grad}, {"power_iters": 200})
    found, slope = fluid.Executor(place).run(block.program, feed, [out, grad])

    def scaled(w: Any) -> Any:
        return w / np.linalg.norm(w, 2)

    np.testing.assert_allclose(found, scaled(weight), rtol=1e-9)
    for at in np.ndindex(5, 4):
        step = np.zeros((5, 4))
        step[at] = 1e-6
        difference = np.sum(given * (scaled(weight + step) - scaled(weight - step))) / 2e-6
        assert slope[at] == pytest.approx(difference, abs=1e-6)
