"""Sub-blocks as programs of their own: what they share with the block around them is state there.

A body reads and writes that state in place, so that a run of it is a call without arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fluidlite.base.dtypes import is_float
from fluidlite.compiler.planning.placement import DRAWS, own_seed
from fluidlite.program.backward import gradients
from fluidlite.program.block import Block
from fluidlite.program.edit import bring_blocks, copy_into, copy_variable
from fluidlite.program.opdef import GRAD
from fluidlite.program.operator import EMPTY
from fluidlite.program.program import Program
from fluidlite.program.variable import Variable
from fluidlite.program.variable_metadata import copy_operator, sum_operator, zeros_operator

STEP = "@STEP" + GRAD
"""Suffix of the state that holds the gradient of a name between the steps of a backward loop."""


def reads_of(block: Block) -> list[str]:
    """Names of outer variables that a block's operators read."""
    return _outer(block, (name for op in block.ops for name in op.input_arg_names))


def writes_of(block: Block) -> list[str]:
    """Names of outer variables that a block's operators write."""
    return _outer(block, (name for op in block.ops for name in op.output_arg_names))


def _outer(block: Block, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name != EMPTY and name not in block.vars]


def has_value(block: Block, name: str) -> bool:
    """Whether a variable has a value by now: it is fed, or state, or an operator writes it."""
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
    making = _Making(block)
    for op in block.ops:
        making.home.ops.append(copy_into(op, making.home))
    bring_blocks(block.program, making.program)
    return making.program


class _Making:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.program = Program()
        self.program._random_seed = block.program.random_seed
        self.program._next_id = block.program._next_id
        self.home = self.program.global_block()
        for name in dict.fromkeys((*reads_of(block), *writes_of(block))):
            self.state(name, name)
        for name, variable in block.vars.items():
            self.home.vars[name] = copy_variable(variable, self.home)

    def state(self, name: str, like: str) -> Variable:
        """Declare state of the dims and dtype of an outer variable."""
        source = self.block.var(like)
        made = Variable(self.home, name, source.spec, persistable=True, stop_gradient=source.stop_gradient)
        self.home.vars[name] = made
        return made


@dataclass
class StepGradient:
    """A program that takes the gradient of one step of a block.

    ``program``: computes the block once more from the values at its start, and then the gradient. The state
    ``name@STEP@GRAD`` of a name that the block writes becomes the gradient of its value before; that of another grows
    by it.
    ``inputs``: names whose gradients it makes: those that are wanted, and those that the block writes.
    ``reached``: those of them that have an influence on the targets.
    """

    program: Program
    inputs: list[str]
    reached: list[str]


def differentiable(block: Block, name: str) -> bool:
    variable = block.find_var(name)
    found = variable is not None and variable.spec is not None and is_float(variable.spec.dtype)
    return found and variable is not None and not variable.stop_gradient


def step_gradient(
    block: Block, targets: Collection[str], wanted: Iterable[str], before: Collection[str]
) -> StepGradient:
    """Make the gradient of one step of a block.

    ``targets``: whose gradients after the step are known.
    ``wanted``: outer variables whose gradients are asked for.
    ``before``: what has a value before the step.
    Raises GradientError if an operator of the block has no derivative with respect to what is wanted.
    """
    making = _Making(block)
    now: dict[str, str] = {}
    written = set(writes_of(block))
    versions: set[str] = set(making.home.vars)
    seen: set[str] = set()
    for op in block.ops:
        inputs = {slot: [now.get(name, name) for name in names] for slot, names in op.inputs.items()}
        outputs = {
            slot: [_version(making, name, now, written, versions, seen) for name in names]
            for slot, names in op.outputs.items()
        }
        hints = dict(op.hints)
        if op.definition.random and DRAWS not in hints:  # it draws what the forward operator did
            hints[DRAWS] = own_seed(op.attrs), next((n for n in op.output_arg_names if n != EMPTY), op.type)
        making.home.ops.append(op._near(making.home, op.definition, inputs, outputs, op.attrs, hints))
    bring_blocks(block.program, making.program)
    home = making.home
    changed = [name for name in targets if name in written and differentiable(block, name)]
    inputs_of = list(dict.fromkeys((*wanted, *changed)))
    steps = {name: making.state(name + STEP, name) for name in dict.fromkeys((*inputs_of, *changed))}
    for name, variable in steps.items():
        variable.stop_gradient = True
        if name not in home.vars:  # another block of the operator reads it
            making.state(name, name)
        home.vars[name].stop_gradient = False
    found: list[Variable | None] = [None] * len(inputs_of)
    if changed and inputs_of:
        ends = [home.var(now.get(name, name)) for name in changed]
        found = gradients(ends, [home.var(n) for n in inputs_of], [steps[n] for n in changed])
    with making.program.roles("backward"):
        whole = {}
        for name, gradient in zip(inputs_of, found, strict=True):
            if name in written and gradient is None:
                whole[name] = home.create_temporary(stop_gradient=True)
                home.append_op(
                    zeros_operator(home.var(name)),
                    {"X": home.var(name) if name in before else steps[name]},
                    {"Out": whole[name]},
                )
            elif gradient is not None:
                whole[name] = home.create_temporary(stop_gradient=True)
                parts = [gradient] if name in written else [steps[name], gradient]
                home.append_op(sum_operator(home.var(name)), {"X": parts}, {"Out": whole[name]})
        for name, value in whole.items():
            home.append_op(copy_operator(value), {"X": value}, {"Out": steps[name]})
    reached = [name for name, gradient in zip(inputs_of, found, strict=True) if gradient is not None]
    return StepGradient(making.program, inputs_of, reached)


def _version(
    making: _Making, name: str, now: dict[str, str], written: set[str], versions: set[str], seen: set[str]
) -> str:
    """The name that a written value gets: one of its own, for gradients read what is overwritten later."""
    if name == EMPTY or (name not in written and name not in seen):
        seen.add(name)
        return name
    number = 1
    while f"{name}@{number}" in versions:
        number += 1
    made = f"{name}@{number}"
    versions.add(made)
    source = making.block.var(name)
    making.home.vars[made] = Variable(making.home, made, source.spec, stop_gradient=source.stop_gradient)
    now[name] = made
    return made
