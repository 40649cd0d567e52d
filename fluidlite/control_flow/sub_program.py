"""Programs of sub-blocks: variables shared with the enclosing block become state of the program.

A body reads and writes that state in place, so a run of it needs no feeds and fetches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fluidlite.base.dtypes import is_float
from fluidlite.compiler.planning.placement import RANDOM_HINT, own_seed
from fluidlite.program.backward import gradients
from fluidlite.program.block import Block
from fluidlite.program.edit import copy_into, copy_sub_blocks, copy_variable
from fluidlite.program.opdef import GRAD
from fluidlite.program.operator import EMPTY
from fluidlite.program.program import Program
from fluidlite.program.variable import Variable
from fluidlite.program.variable_metadata import copy_operator, sum_operator, zeros_operator

STEP_GRAD = "@STEP" + GRAD
"""Suffix of the state that holds the gradient of a name between the steps of a backward loop."""


def outer_reads(block: Block) -> list[str]:
    """Names of outer variables that a block's operators read."""
    return _outer(block, (name for op in block.ops for name in op.input_arg_names))


def outer_writes(block: Block) -> list[str]:
    """Names of outer variables that a block's operators write."""
    return _outer(block, (name for op in block.ops for name in op.output_arg_names))


def _outer(block: Block, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name != EMPTY and name not in block.vars]


def has_value(block: Block, name: str) -> bool:
    """Whether a variable has a value at the end of a block: it is fed, is state, or an operator writes it."""
    inner: Block | None = block
    while inner is not None:
        if any(name in op.output_arg_names for op in inner.ops):
            return True
        if name in inner.vars:
            variable = inner.vars[name]
            return variable.persistable or variable.is_data
        inner = inner.parent
    return False


def body_program(block: Block) -> Program:
    """A program that runs a block once; the outer variables that it names are persistable."""
    builder = _Builder(block)
    for op in block.ops:
        builder.root.ops.append(copy_into(op, builder.root))
    copy_sub_blocks(block.program, builder.program)
    return builder.program


class _Builder:
    """Builds a program from a block: copies its variables, and declares outer variables as state."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.program = Program()
        self.program._random_seed = block.program.random_seed
        self.program._next_id = block.program._next_id
        self.root = self.program.global_block()
        for name in dict.fromkeys((*outer_reads(block), *outer_writes(block))):
            self.state(name, name)
        for name, variable in block.vars.items():
            self.root.vars[name] = copy_variable(variable, self.root)

    def state(self, name: str, like: str) -> Variable:
        """Declare state of the dims and dtype of an outer variable."""
        source = self.block.var(like)
        variable = Variable(self.root, name, source.spec, persistable=True, stop_gradient=source.stop_gradient)
        self.root.vars[name] = variable
        return variable


@dataclass
class StepGradient:
    """A program that computes the gradient of one step of a block.

    ``program``: recomputes the block from the values at its start, then computes the gradient. For a name that the
    block writes, the state ``name@STEP@GRAD`` is replaced by the gradient of the value before the step; for other
    names, the gradient is added to it.
    ``inputs``: names whose gradients it computes: the requested ones, and those that the block writes.
    ``reached``: the inputs that have an influence on the targets.
    """

    program: Program
    inputs: list[str]
    reached: list[str]


def is_differentiable(block: Block, name: str) -> bool:
    variable = block.find_var(name)
    is_float_variable = variable is not None and variable.spec is not None and is_float(variable.spec.dtype)
    return is_float_variable and variable is not None and not variable.stop_gradient


def step_gradient(
    block: Block, targets: Collection[str], grad_names: Iterable[str], before: Collection[str]
) -> StepGradient:
    """Make the gradient of one step of a block.

    ``targets``: variables with a gradient after the step.
    ``grad_names``: outer variables whose gradients are requested.
    ``before``: variables with a value before the step.
    Raises GradientError if an operator of the block has no derivative for a requested gradient.
    """
    builder = _Builder(block)
    current: dict[str, str] = {}
    written = set(outer_writes(block))
    versions: set[str] = set(builder.root.vars)
    local_writes: set[str] = set()
    for op in block.ops:
        inputs = {slot: [current.get(name, name) for name in names] for slot, names in op.inputs.items()}
        outputs = {
            slot: [_version(builder, name, current, written, versions, local_writes) for name in names]
            for slot, names in op.outputs.items()
        }
        hints = dict(op.hints)
        if op.definition.random and RANDOM_HINT not in hints:  # it draws the same numbers as the forward operator
            hints[RANDOM_HINT] = own_seed(op.attrs), next((n for n in op.output_arg_names if n != EMPTY), op.type)
        builder.root.ops.append(op._near(builder.root, op.definition, inputs, outputs, op.attrs, hints))
    copy_sub_blocks(block.program, builder.program)
    root = builder.root
    changed = [name for name in targets if name in written and is_differentiable(block, name)]
    inputs_of = list(dict.fromkeys((*grad_names, *changed)))
    steps = {name: builder.state(name + STEP_GRAD, name) for name in dict.fromkeys((*inputs_of, *changed))}
    for name, variable in steps.items():
        variable.stop_gradient = True
        if name not in root.vars:  # another block of the operator reads it
            builder.state(name, name)
        root.vars[name].stop_gradient = False
    input_gradients: list[Variable | None] = [None] * len(inputs_of)
    if changed and inputs_of:
        ends = [root.var(current.get(name, name)) for name in changed]
        input_gradients = gradients(ends, [root.var(n) for n in inputs_of], [steps[n] for n in changed])
    with builder.program.roles("backward"):
        step_gradients = {}
        for name, gradient in zip(inputs_of, input_gradients, strict=True):
            if name in written and gradient is None:
                step_gradients[name] = root.create_temporary(stop_gradient=True)
                root.append_op(
                    zeros_operator(root.var(name)),
                    {"X": root.var(name) if name in before else steps[name]},
                    {"Out": step_gradients[name]},
                )
            elif gradient is not None:
                step_gradients[name] = root.create_temporary(stop_gradient=True)
                parts = [gradient] if name in written else [steps[name], gradient]
                root.append_op(sum_operator(root.var(name)), {"X": parts}, {"Out": step_gradients[name]})
        for name, value in step_gradients.items():
            root.append_op(copy_operator(value), {"X": value}, {"Out": steps[name]})
    reached = [name for name, gradient in zip(inputs_of, input_gradients, strict=True) if gradient is not None]
    return StepGradient(builder.program, inputs_of, reached)


def _version(
    builder: _Builder, name: str, current: dict[str, str], written: set[str], versions: set[str], local_writes: set[str]
) -> str:
    """A new name for each write of a variable, as gradients read values that later writes would overwrite."""
    if name == EMPTY or (name not in written and name not in local_writes):
        local_writes.add(name)
        return name
    number = 1
    while f"{name}@{number}" in versions:
        number += 1
    version = f"{name}@{number}"
    versions.add(version)
    source = builder.block.var(name)
    builder.root.vars[version] = Variable(builder.root, version, source.spec, stop_gradient=source.stop_gradient)
    current[name] = version
    return version
