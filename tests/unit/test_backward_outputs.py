"""A gradient that reads outputs which the forward operator was built without: backward gives them variables."""

from __future__ import annotations

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.dtypes import ALL_FLOATS, dtype_name
from fluidlite.conformance.cases import Case, cases
from fluidlite.errors import GradientError
from fluidlite.program.rules import GradRule


def _cases() -> list[Case]:
    """A case of each operator with outputs that its gradient reads beside those that it differentiates."""
    found: dict[str, Case] = {}
    for case in cases():
        rule = case.op.grad
        if isinstance(rule, GradRule) and case.sample.grads and case.graded_outputs() and len(case.op.outputs) > 1:
            found.setdefault(case.op.type, case)
    return list(found.values())


def gradients(case: Case, named: tuple[str, ...]) -> list[np.ndarray]:
    """The gradients of a case's output, its operator having variables for the named outputs alone."""
    program, scope, executor = fluid.Program(), fluid.Scope(), fluid.Executor("cpu", mode="interpreted")
    block = program.global_block()
    feed, wanted = {}, []
    inputs: dict[str, list[str]] = {}
    for slot, arrays in case.inputs().items():
        lod = case.sample.lod.get(slot, ())
        for i, array in enumerate(arrays):
            name, dtype = f"{slot}{i}", dtype_name(array.dtype)
            inputs.setdefault(slot, []).append(name)
            variable = block.create_var(
                name, array.shape, dtype, is_data=True, stop_gradient=dtype not in ALL_FLOATS, lod_level=len(lod)
            )
            feed[name] = fluid.Tensor().set(array, None, [list(level) for level in lod])
            if slot in case.sample.grads and dtype in ALL_FLOATS:
                wanted.append(variable)
    for slot in named:
        block.create_var(slot)
    operator = block.append_op(case.op.type, inputs, {slot: [slot] for slot in named}, dict(case.sample.attrs))
    made = fluid.gradients([block.var(case.graded_outputs()[0])], wanted)
    assert set(operator.outputs) >= set(named)
    assert all(block.has_var(name) for name in operator.output_arg_names)
    names = [variable.name for variable in made if variable is not None]
    found = executor.run(program, feed, names, scope=scope, return_numpy=False)
    return [np.array(tensor.numpy()) for tensor in found]


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.op.type)
def test_outputs_that_nobody_named(case: Case) -> None:
    """The gradients are those of an operator that was built with every output."""
    every = tuple(slot.name for slot in case.op.outputs if slot.name not in case.op.must_alias)
    if any(slot.duplicable for slot in case.op.outputs):
        pytest.skip("nothing says how many variables it has")
    least = gradients(case, case.graded_outputs()[:1])
    for mine, other in zip(least, gradients(case, every), strict=True):
        assert mine.tobytes() == other.tobytes()


def test_a_refused_backward_takes_them_out_again() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        block = fluid.default_main_program().global_block()
        block.create_var("x", [3, 4], "float32", is_data=True, stop_gradient=False)
        for name in ("clipped", "y"):
            block.create_var(name)
        block.append_op("clip_by_norm", {"X": ["x"]}, {"Out": ["clipped"]}, {"max_norm": 1.0})
        operator = block.append_op("layer_norm", {"X": ["clipped"]}, {"Y": ["y"]}, {})
        before = block.program.to_string()
        with pytest.raises(GradientError, match="clip_by_norm"):
            fluid.gradients([block.var("y")], [block.var("x")])
        assert block.program.to_string() == before
        assert set(operator.outputs) == {"Y"}
