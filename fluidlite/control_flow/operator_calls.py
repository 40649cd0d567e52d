"""Run one operator of the registry on tensors of a run; operators on arrays and sequences are composed of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite.compiler.frame import Frame
from fluidlite.control_flow.bodies import body_of
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import Operator
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.program import Program
from fluidlite.program.registry import ops
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor


def run_operator(
    frame: Frame,
    op: Operator,
    type: str,
    inputs: Mapping[str, Sequence[Tensor]],
    attrs: Mapping[str, Any] | None = None,
    count: int = 1,
) -> list[Tensor]:
    """Run an operator on the place of a run.

    ``op``: the operator that calls it: errors name it, and its cache has the program.
    ``inputs``: tensors on the place; they are copied.
    ``count``: the number of variables of Out.
    Returns tensors that share no memory.
    """
    definition = ops.get(type)
    counts = tuple((name, len(tensors)) for name, tensors in inputs.items())
    key = (type, counts, tuple(sorted((attrs or {}).items())), count)
    body = body_of(frame, op, key, lambda: (_program(op, definition, counts, attrs or {}, count), ()))
    body.begin(frame)
    try:
        for name, tensors in inputs.items():
            for number, tensor in enumerate(tensors):
                body.copy_in(f"{name}.{number}", tensor)
        body.executor.run(body.program, None, [], scope=body.scope)
        outputs = [body.copy_out(f"@{number}") for number in range(count)]
    finally:
        body.end()
    return [tensor for tensor in outputs if tensor is not None]


def _program(
    op: Operator, definition: OpDef, counts: Sequence[tuple[str, int]], attrs: Mapping[str, Any], count: int
) -> Program:
    """A program of one operator, whose inputs and outputs are state."""
    program = Program()
    block = program.global_block()
    inputs = {name: [f"{name}.{number}" for number in range(number_of_tensors)] for name, number_of_tensors in counts}
    outputs = [f"@{number}" for number in range(count)]
    for name in (*(name for names in inputs.values() for name in names), *outputs):
        block.vars[name] = Variable(block, name, persistable=True, stop_gradient=True)
    checked, hints = check_attrs(definition, attrs, op.line)
    block.ops.append(
        Operator(block, definition, inputs, {"Out": outputs}, checked, hints, program.next_id(), op.role, op.line)
    )
    return program
