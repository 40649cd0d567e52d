"""while and conditional_block: operators that run sub-blocks. The host reads conditions; values stay on their place.

The slots have all outer variables that the blocks read and write. The attributes ``inside`` and ``written`` have the
names that the blocks use for them, as passes rename the variables of slots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from fluidlite.base.errors import OutOfRangeError, ProgramError
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.run_errors import raise_before_state_write
from fluidlite.control_flow.bodies import UNKNOWN, BlockBody, StepRecords, body_of, check_fits, is_random, zeros
from fluidlite.control_flow.sub_program import STEP_GRAD, body_program, step_gradient
from fluidlite.control_flow.trip_count import TripCount, find_trip_count
from fluidlite.program.block import Block
from fluidlite.program.contents import slots
from fluidlite.program.gradient_paths import NoDerivativeError
from fluidlite.program.opdef import GRAD, Attr, Slot
from fluidlite.program.operator import Operator
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.program import Program
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec
from fluidlite.tensor.var_type import VarType

KINDS = ("dense", TENSOR_ARRAY)
STEP_RECORDS_SPEC = Spec.of((0,), "float32")
"""The declared spec of step records: floats, so that dependences on them count in backward."""
NO_SECOND_GRADIENT = "repeat the steps without a loop or branch, as Python's for does while the program is built"
"""Advice in the error about second derivatives of loops."""


class _BlockRun:
    """One run of while or conditional_block: its values, and the records for its gradient."""

    def __init__(self, frame: Frame, op: Operator, slot: str, steps_slot: str) -> None:
        raise_before_state_write(
            frame, None
        )  # raises deferred errors of earlier operators, so that they do not name a body
        self.frame, self.op, self.slot = frame, op, slot
        self.inside: tuple[str, ...] = op.attrs["inside"]
        self.written: tuple[str, ...] = op.attrs["written"]
        self.values = dict(zip(self.inside, frame.read(slot), strict=True))
        self.planned = frame.planned("Out")
        self.steps = StepRecords(bool(frame.output_count(steps_slot)) and not op.attrs["is_test"])
        self.steps_slot = steps_slot
        self.steps.before = {name: tensor._required_spec() for name, tensor in self.values.items()}

    def body(self, index: int) -> BlockBody:
        block = self.op.block.program.blocks[index]
        body = body_of(self.frame, self.op, index, lambda: (body_program(block), ()))
        body.begin(self.frame)
        names = body.program.global_block().vars
        for name, tensor in self.values.items():
            if name in self.written:
                if name in names:
                    body.copy_in(name, tensor)
            elif name in names:
                body.share(name, tensor)
        return body

    def record(self, index: int, body: BlockBody, random: bool) -> None:
        """Record the values that the gradient of the next step needs."""
        self.steps.record(index, body, (name for name in self.written if name in self.values), random)

    def finish(self, body: BlockBody | None) -> None:
        """Write the outputs from a body; None: it did not run, and the outputs are the inputs."""
        tensors: list[Tensor] = []
        changed = body.program.global_block().vars if body is not None else ()
        for name, spec in zip(self.written, self.planned, strict=True):
            value = body.copy_out(name) if body is not None and name in changed else self.values.get(name)
            if value is None:
                raise ProgramError(
                    f"{self.op}: its sub-block did not run, and {name!r} has no value from before"
                    f"\n  Do: give {name!r} a value before the block, such as by layers.fill_constant"
                )
            check_fits(name, value, spec)
            tensors.append(value)
        if tensors:
            self.frame.write("Out", tensors)
        self.steps.after = {n: t._required_spec() for n, t in zip(self.written, tensors, strict=True)}
        if self.frame.output_count(self.steps_slot):
            self.frame.write(self.steps_slot, [self.steps])


def _condition_value(array: Any, name: str) -> bool:
    if array.size != 1:
        raise ProgramError(f"the condition {name!r} has dims {list(array.shape)}; expected one element")
    return bool(array.reshape(-1)[0])


def _trip_count(run: _BlockRun, body: BlockBody, index: int, condition: str) -> int | None:
    """The trip count, if counters determine it; None: the condition must be read in each iteration."""
    if body.trips is UNKNOWN:
        body.trips = find_trip_count(run.op.block.program.blocks[index], condition)
    trip_count = body.trips
    if trip_count is None or not isinstance(trip_count, TripCount):
        return None
    tensors = {name: run.values[name] for name in trip_count.names if name in run.values}
    if len(tensors) != len(set(trip_count.names)) or any(
        tensor._required_spec().size != 1 for tensor in tensors.values()
    ):
        return None
    return trip_count.of({name: int(tensor.numpy().reshape(-1)[0]) for name, tensor in tensors.items()})


def _run_while(frame: Frame, op: Operator) -> None:
    run = _BlockRun(frame, op, "X", "StepScopes")
    name, index, max_iterations = op.attrs["condition"], op.attrs["sub_block"], op.attrs["max_iterations"]
    holds = _condition_value(frame.read("Condition")[0].numpy(), name)
    if not holds:
        run.finish(None)
        return
    body = run.body(index)
    try:
        random = run.steps.recording and is_random(body.program)
        run_program, program, scope, fetches = body.executor.run, body.program, body.scope, [name]
        count, trips = 0, _trip_count(run, body, index, name)
        if trips is not None and not 0 < max_iterations < trips:
            for remaining in reversed(range(trips)):
                run.record(index, body, random)
                run_program(program, None, [] if remaining else fetches, scope=scope)  # the last raises deferred errors
            holds = False
        while holds:
            if count == max_iterations > 0:
                raise OutOfRangeError(
                    f"{op}: its condition {name!r} still holds after {max_iterations} iterations, which is its limit"
                    "\n  Do: see that the block changes the condition, or give max_iterations= more"
                )
            count += 1
            run.record(index, body, random)
            (array,) = run_program(program, None, fetches, scope=scope)
            holds = bool(array) if array.size == 1 else _condition_value(array, name)
        run.finish(body)
    finally:
        body.end()


def _run_conditional(frame: Frame, op: Operator) -> None:
    run = _BlockRun(frame, op, "Input", "Scope")
    conditions = frame.read("Cond")
    if op.attrs["is_scalar_condition"]:
        holds = _condition_value(conditions[0].numpy(), op.input("Cond")[0])
    else:
        holds = all(tensor._required_spec().size for tensor in conditions)
    index = op.attrs["sub_block"] if holds else op.attrs["else_block"]
    if index is None:
        run.finish(None)
        return
    body = run.body(index)
    try:
        run.record(index, body, run.steps.recording and is_random(body.program))
        body.executor.run(body.program, None, [], scope=body.scope)
        run.finish(body)
    finally:
        body.end()


# Gradients


def _grad(maker: Any, slot: str, steps_slot: str, type: str) -> None:
    """Append the operator that runs the gradients of steps in reverse order."""
    op: Operator = maker.operator
    if op.attrs["is_test"]:
        return
    inside, written = op.attrs["inside"], op.attrs["written"]
    positions = [i for i in range(len(inside)) if maker.output_count(slot, i)]
    names = [inside[i] for i in positions]
    blocks = [op.attrs[a] for a in ("sub_block", "else_block") if op.attrs.get(a) is not None]
    program = op.block.program
    reached: set[str] = set()
    for index in blocks:
        try:
            step = step_gradient(program.blocks[index], written, names, inside)
        except NoDerivativeError as exc:
            origins = maker.origins(slot)
            first = next(iter(origins.values()))
            raise NoDerivativeError(str(exc), origins.get(exc.origin, first)) from None
        reached.update(step.reached)
    reached.update(written)
    positions = [i for i in positions if inside[i] in reached]
    starts = {written[i]: name for i in range(len(written)) if (name := maker.finished("Out", i)) is not None}
    maker.differentiated_slots.add(slot)
    read_only = [i for i in range(len(inside)) if inside[i] not in written]
    inputs = {
        "X": [maker.input(slot, i) for i in read_only],
        "Steps": steps_of(op, steps_slot),
        "Out" + GRAD: list(starts.values()),
    }
    attrs = {
        "sub_block": op.attrs["sub_block"],
        "inside": [inside[i] for i in read_only],
        "written": list(written),
        "given": list(starts),
        "wanted": [inside[i] for i in positions],
    }
    if "else_block" in op.attrs:
        attrs["else_block"] = op.attrs["else_block"]
    maker.op(type, inputs, {"X" + GRAD: [maker.input_grad(slot, i) for i in positions]}, attrs)


def steps_of(op: Operator, slot: str) -> list[str]:
    """The name of the variable of step records; added to the operator if it was built without."""
    if not op.output(slot):
        variable = op.block.create_temporary(prefix=f"{op.type}.steps")
        variable.declare(STEP_RECORDS_SPEC)
        variable.type = VarType.STEP_SCOPES
        op._outputs = slots({**op.outputs, slot: [variable.name]})
        op.block.program.touch()
    return op.output(slot)


def _run_grad(frame: Frame, op: Operator) -> None:
    raise_before_state_write(frame, None)
    attrs = op.attrs
    steps = frame.read("Steps")[0]
    assert isinstance(steps, StepRecords)
    context = frame.context
    read_only = dict(zip(attrs["inside"], frame.read("X"), strict=True))
    gradients = dict(zip(attrs["given"], frame.read("Out" + GRAD), strict=True))
    grad_names: Sequence[str] = attrs["wanted"]
    bodies: dict[int, BlockBody] = {}
    program = op.block.program
    try:
        for index in dict.fromkeys(index for index, _, _ in steps.records):
            make = partial(gradient_program, program.blocks[index], attrs["written"], grad_names, steps.before)
            body = bodies[index] = body_of(frame, op, index, make)
            body.begin(frame)
            for name, tensor in read_only.items():
                if name in body.program.global_block().vars:
                    body.share(name, tensor)
        _run_back(steps, bodies, gradients, grad_names)
    finally:
        for body in bodies.values():
            body.end()
    for name in grad_names:
        if name not in gradients:
            gradients[name] = zeros(steps.before[name], context)
    tensors = [gradients[name] for name in grad_names]
    for name, tensor, spec in zip(grad_names, tensors, frame.planned("X" + GRAD), strict=True):
        check_fits(name + GRAD, tensor, spec)
    frame.write("X" + GRAD, tensors)


def gradient_program(
    block: Block, targets: Sequence[str], grad_names: Sequence[str], before: Collection[str]
) -> tuple[Program, list[str]]:
    """The program of the gradient of one step, and the names of its gradients, for :func:`body_of`."""
    step = step_gradient(block, targets, grad_names, before)
    return step.program, step.inputs


def _run_back(
    steps: StepRecords, bodies: Mapping[int, BlockBody], gradients: dict[str, Tensor], grad_names: Sequence[str]
) -> None:
    """Run the gradients of steps, last first; ``gradients`` becomes that of the values before the first step."""
    last: BlockBody | None = None
    for number, (index, values, runs) in reversed(list(enumerate(steps.records))):
        body = bodies[index]
        if last is not body:
            ends = steps.after if number == len(steps.records) - 1 else {}
            for name in body.inputs:
                tensor = gradients.get(name)
                if tensor is not None:
                    body.copy_in(name + STEP_GRAD, tensor)
                else:
                    spec = ends.get(name) or steps.before.get(name)
                    assert spec is not None
                    body.set_zeros(name + STEP_GRAD, spec)
        for name, tensor in values.items():
            if name in body.program.global_block().vars:
                body.copy_in(name, tensor)
        body.scope.runs = dict(runs) if runs is not None else None
        body.executor.run(body.program, None, [], scope=body.scope)
        last = body
    if last is not None:
        for name in last.inputs:
            if name in grad_names and (gradient := last.copy_out(name + STEP_GRAD)) is not None:
                gradients[name] = gradient


_NAME_ATTRS = (
    Attr("inside", "strs", (), doc="the names in the blocks of the variables read, one for each variable of the slot"),
    Attr("written", "strs", (), doc="the names in the blocks of the variables written, one for each variable of Out"),
)
_BLOCK_ATTR = Attr("sub_block", "block", doc="the index of the block")
_TEST_ATTR = Attr("is_test", "bool", False, doc="True: nothing is saved for a gradient")
_GRADIENT_ATTRS = (
    Attr("given", "strs", (), doc="the names whose gradients Out@GRAD holds"),
    Attr("wanted", "strs", (), doc="the names whose gradients X@GRAD holds"),
)


def _register_gradient(type: str, attrs: tuple[Attr, ...], doc: str, source: str) -> None:
    register_op(
        type,
        Differentiation(no_gradient=dict.fromkeys(("X", "Steps", "Out" + GRAD), NO_SECOND_GRADIENT)),
        Inference(dynamic=True),
        Execution(run=_run_grad),
        inputs=(
            Slot(
                "X",
                duplicable=True,
                dispensable=True,
                run_place=True,
                kinds=KINDS,
                doc="the variables that the blocks only read",
            ),
            Slot("Steps", on_host=True, doc="the step records of the forward operator"),
            Slot("Out" + GRAD, duplicable=True, dispensable=True, run_place=True, kinds=KINDS),
        ),
        outputs=(Slot("X" + GRAD, duplicable=True, run_place=True),),
        attrs=(*attrs, *_NAME_ATTRS, *_GRADIENT_ATTRS),
        doc=doc,
        source=source,
    )


register_op(
    "while",
    Differentiation(rule=lambda maker: _grad(maker, "X", "StepScopes", "while_grad")),
    Inference(dynamic=True),
    Execution(run=_run_while),
    inputs=(
        Slot("X", duplicable=True, dispensable=True, run_place=True, kinds=KINDS, doc="outer variables in use"),
        Slot("Condition", on_host=True, doc="bool, of one element: whether there is a first iteration"),
    ),
    outputs=(
        Slot("Out", duplicable=True, dispensable=True, run_place=True, doc="outer variables that the block writes"),
        Slot("StepScopes", dispensable=True, on_host=True, doc="the records of each iteration, for the gradient"),
    ),
    attrs=(
        _BLOCK_ATTR,
        *_NAME_ATTRS,
        _TEST_ATTR,
        Attr("condition", "str", doc="the name of the condition in the block"),
        Attr("max_iterations", "int", 0, minimum=0, doc="more iterations raise an error; 0: no limit"),
    ),
    dtypes={"Condition": ("bool",)},
    doc="Runs the block while the condition holds, which the block writes; Out is the values after the last iteration, "
    "or X if there is none",
    source="Fluid controlflow/while_op.cc",
)
_register_gradient(
    "while_grad",
    (_BLOCK_ATTR,),
    "The gradient of while: its iterations, last first, each recomputed from the values at its start",
    "Fluid controlflow/while_op.cc",
)

_ELSE_ATTR = Attr("else_block", "block", optional=True, doc="the index of the block that runs where the other does not")
register_op(
    "conditional_block",
    Differentiation(rule=lambda maker: _grad(maker, "Input", "Scope", "conditional_block_grad")),
    Inference(dynamic=True),
    Execution(run=_run_conditional),
    inputs=(
        Slot("Input", duplicable=True, dispensable=True, run_place=True, kinds=KINDS, doc="outer variables in use"),
        Slot("Cond", duplicable=True, on_host=True, doc="the condition: bool, of one element, if it is a scalar"),
    ),
    outputs=(
        Slot("Out", duplicable=True, dispensable=True, run_place=True, doc="outer variables that the blocks write"),
        Slot("Scope", dispensable=True, on_host=True, doc="the record for the gradient"),
    ),
    attrs=(
        _BLOCK_ATTR,
        _ELSE_ATTR,
        *_NAME_ATTRS,
        _TEST_ATTR,
        Attr("is_scalar_condition", "bool", True, doc="False: the condition is that no variable of Cond is empty"),
    ),
    doc="Runs the block if the condition holds, else the other block, if any; other variables keep their values",
    source="Fluid controlflow/conditional_block_op.cc",
)
_register_gradient(
    "conditional_block_grad",
    (_BLOCK_ATTR, _ELSE_ATTR),
    "The gradient of conditional_block: the gradient of the block that ran",
    "Fluid controlflow/conditional_block_op.cc",
)
