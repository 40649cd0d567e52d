"""The gradient operators that take the gradients of all outputs: derived, also where an operator infers its outputs."""

from __future__ import annotations

import numpy as np
import pytest
from operator_checks import CASES

import fluidlite as fluid
from fluidlite import layers
from fluidlite.conformance.op_harness import build, feed_output_gradients, run
from fluidlite.conformance.reference import Oracle
from fluidlite.program.backward import gradients
from fluidlite.program.derived import whole_rule
from fluidlite.program.opdef import GRAD
from fluidlite.program.rules import GradRule
from fluidlite.testing import Case

PLACES = [str(place) for place in fluid.places()]
FIRST: dict[str, Case] = {}
"""By operator that infers its outputs by other means than its expression: its first sample with gradients."""
for _case in CASES.values():
    _op = _case.op
    if _op.expression is not None and _op.expression.inferred and isinstance(_op.grad, GradRule) and _case.sample.grads:
        FIRST.setdefault(_op.type, _case)


@pytest.mark.parametrize("op", FIRST)
def test_it_is_what_the_declared_one_is(op: str) -> None:
    case, rule = FIRST[op], whole_rule(FIRST[op].op)
    assert rule is not None
    oracle = Oracle(case)
    one = build(case, oracle.counts())
    targets, starts = feed_output_gradients(one, oracle.weights)
    wanted = [variable for slot in case.sample.grads for variable in one.inputs[slot]]
    declared = gradients(targets, wanted, starts)
    start_of = {target.name: start for target, start in zip(targets, starts, strict=True)}
    seeds = {
        slot + GRAD: [start_of[made.name] for made in one.outputs[slot] if made.name in start_of]
        for slot in oracle.weights
    }
    given = {slot: found for slot, found in {**one.inputs, **one.outputs, **seeds}.items() if slot in rule.reads}
    block = one.program.global_block()
    made = {
        slot + GRAD: [block.create_var(f"{slot}.{i}.of_all") for i in range(len(one.inputs[slot]))]
        for slot in case.sample.grads
    }
    block.append_op(rule.type, given, made, case.sample.attrs)
    derived = [variable for found in made.values() for variable in found]
    for mode in ("interpreted", "compiled"):
        found = [tensor.numpy() for tensor in run(one, fluid.CPUPlace(), [*declared, *derived], mode)]
        for mine, theirs in zip(found[: len(wanted)], found[len(wanted) :], strict=True):
            np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("type", "attrs"),
    [
        ("flatten2", {}),
        ("reshape2", {"shape": [6, 4]}),
        ("squeeze2", {"axes": [1]}),
        ("transpose2", {"axis": [2, 0, 1]}),
        ("unsqueeze2", {"axes": [0]}),
    ],
)
def test_what_is_kept_for_backward_is_a_target_beside_the_result(type: str, attrs: object, place: str) -> None:
    """Its derivative is 0: it has no elements."""
    x = layers.data("x", [8, 1, 3], append_batch_size=False)
    x.stop_gradient = False
    block = fluid.default_main_program().global_block()
    out, kept = block.create_var("out"), block.create_var("kept")
    block.append_op(type, {"X": x}, {"Out": out, "XShape": kept}, attrs)
    (grad,) = gradients([layers.reduce_sum(out * out), kept], [x])
    value = np.arange(24, dtype="float32").reshape(8, 1, 3)
    (found,) = fluid.Executor(place, fallback="allow").run(feed={"x": value}, fetch_list=[grad])
    np.testing.assert_array_equal(found, 2 * value)
