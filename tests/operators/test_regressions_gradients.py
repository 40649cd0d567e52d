"""Gradients that are no derivatives, as Fluid defines them: samples by differences cannot check these."""

from __future__ import annotations

import pytest

import fluidlite as fluid
from fluidlite.conformance.sample_helpers import rand
from fluidlite.conformance.samples import Sample
from fluidlite.program.registry import ops
from fluidlite.testing import Case, check_sample

PLACES = [str(place) for place in fluid.places()]
CVM = {"X": rand(5, 7), "CVM": rand(5, 2, seed=1)}
CASES = [
    ("cvm_grad", Sample({**CVM, "Y@GRAD": rand(5, 7, seed=2)})),
    ("cvm_grad", Sample({**CVM, "Y@GRAD": rand(5, 5, seed=2)}, {"use_cvm": False})),
    ("cvm_grad", Sample({"X": rand(3, 2), "CVM": rand(3, 2, seed=1), "Y@GRAD": rand(3, 2, seed=2)})),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("type", "sample"), CASES)
def test_gradient(place: str, type: str, sample: Sample) -> None:
    for dtype in ("float32", "float64"):
        check_sample(Case(ops.get(type), sample, type, dtype), place)
