"""Outputs that a program leaves out, of operators that have several."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

import fluidlite as fluid
from fluidlite.conformance.op_harness import MODES, build, run
from fluidlite.conformance.samples import Sample, reference_of, samples_of
from fluidlite.program.registry import ops
from fluidlite.testing import Case, check_sample

PLACES = [place for place in map(str, fluid.places()) if not place.startswith("fpga")]
TYPES = (
    "batch_norm", "cos_sim", "group_norm", "instance_norm", "layer_norm", "linear_chain_crf", "lrn", "momentum", "norm",
    "rmsprop", "softmax_with_cross_entropy",
)  # fmt: skip


SAMPLED = tuple(op.type for op in ops if reference_of(op.type) is not None)


def outputs_of(type: str, sample: Sample) -> tuple[str, ...]:
    return sample.outputs or tuple(slot.name for slot in ops.get(type).outputs)


SEVERAL = tuple(type for type in SAMPLED if len(outputs_of(type, samples_of(type)[0])) > 1)


def asked(type: str, sample: Sample, outputs: tuple[str, ...]) -> Case:
    some = Sample(sample.inputs, sample.attrs, (), sample.lod, sample.name, sample.dtypes, outputs)
    return Case(ops.get(type), some, f"{sample.name} {outputs}", sample.dtypes[0])


def some_outputs(type: str) -> Iterator[Case]:
    """The operator's first samples, each with every choice of outputs but all."""
    for sample in samples_of(type)[:3]:
        wanted = outputs_of(type, sample)
        for count in range(1, len(wanted)):
            for outputs in combinations(wanted, count):
                yield asked(type, sample, outputs)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("type", TYPES)
def test_any_of_the_outputs(place: str, type: str) -> None:
    for case in some_outputs(type):
        check_sample(case, place)


@pytest.mark.parametrize("type", SEVERAL)
def test_all_outputs_but_one(type: str) -> None:
    """Passes ask for an output by its slot, which a program may leave out: of every operator that has several."""
    sample = samples_of(type)[0]
    wanted = outputs_of(type, sample)
    for left_out in wanted:
        check_sample(asked(type, sample, tuple(slot for slot in wanted if slot != left_out)), "cpu")


@pytest.mark.parametrize("mode", MODES)
def test_no_output_at_all(mode: str) -> None:
    """An operator whose results nobody names is planned and explained: nothing of it runs."""
    assert len(SAMPLED) > 200
    for type in SAMPLED:
        one = build(asked(type, samples_of(type)[0], ()), {})
        assert run(one, fluid.CPUPlace(), [], mode) == []
        fluid.explain(one.program, "cpu")
