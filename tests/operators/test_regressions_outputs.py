"""Outputs that a program leaves out, of operators that have several."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

import fluidlite as fluid
from fluidlite.conformance.samples import Sample, samples_of
from fluidlite.program.registry import ops
from fluidlite.testing import Case, check_sample

PLACES = [place for place in map(str, fluid.places()) if not place.startswith("fpga")]
TYPES = (
    "batch_norm", "cos_sim", "group_norm", "instance_norm", "layer_norm", "linear_chain_crf", "lrn", "momentum", "norm",
    "rmsprop", "softmax_with_cross_entropy",
)  # fmt: skip


def some_outputs(type: str) -> Iterator[Case]:
    """The operator's first samples, each with every choice of outputs but all."""
    op = ops.get(type)
    for sample in samples_of(op.type)[:3]:
        wanted = sample.outputs or tuple(slot.name for slot in op.outputs)
        for count in range(1, len(wanted)):
            for outputs in combinations(wanted, count):
                some = Sample(sample.inputs, sample.attrs, (), sample.lod, sample.name, sample.dtypes, outputs)
                yield Case(op, some, f"{sample.name} {outputs}", sample.dtypes[0])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("type", TYPES)
def test_any_of_the_outputs(place: str, type: str) -> None:
    for case in some_outputs(type):
        check_sample(case, place)
