"""while and conditional_block: operators that run sub-blocks. The host steers; values stay on the place of the run.

The slots name all that the blocks read and write of the variables around them; the attributes ``inside`` and
``written`` say under which names the blocks know these, for passes rename values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from fluidlite.base.errors import OutOfRangeError, ProgramError
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.run_errors import before_state
from fluidlite.control_flow.bodies import UNKNOWN, Body, Steps, body_of, check_fits, is_random, zeros
from fluidlite.control_flow.sub_program import STEP, body_program, step_gradient
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

BOTH = ("dense", TENSOR_ARRAY)
KEPT = Spec.of((0,), "float32")
"""What a program declares the variable of steps as: floats, so that what depends on them is seen to."""
NO_SECOND = "repeat the steps without a loop or branch, as Python's for does while the program is built"
"""What to do where the gradient of a loop's gradient is asked for."""


class _Run:
    def __init__(self, frame: Frame, op: Operator, slot: str, steps_slot: str) -> None:
        before_state(frame, None)  # a deferred error of an operator before is not a body's
        self.frame, self.op, self.slot = frame, op, slot
        self.inside: tuple[str, ...] = op.attrs["inside"]
        self.written: tuple[str, ...] = op.attrs["written"]
        self.values = dict(zip(self.inside, frame.read(slot), strict=True))
        self.planned = frame.planned("Out")
        self.steps = Steps() if frame.wants(steps_slot) and not op.attrs["is_test"] else None
        self.steps_slot = steps_slot
        if self.steps is not None:
            self.steps.before = {name: tensor._known() for name, tensor in self.values.items()}

    def body(self, index: int) -> Body:
        block = self.op.block.program.blocks[index]
        body = body_of(self.frame, self.op, index, lambda: (body_program(block), ()))
        body.begin(self.frame)
        names = body.program.global_block().vars
        for name, tensor in self.values.items():
            if name in self.written:
                if name in names:
                    body.give(name, tensor)
            elif name in names:
                body.lend(name, tensor)
        return body

    def keep(self, index: int, body: Body, random: bool) -> None:
        """Keep what the gradient of the next step needs."""
        if self.steps is not None:
            self.steps.keep(index, body, (name for name in self.written if name in self.values), random)

    def finish(self, body: Body | None) -> None:
        """Write what a body has left; None: it did not run, and everything is as it was."""
        tensors: list[Tensor] = []
        changed = body.program.global_block().vars if body is not None else ()
        for name, spec in zip(self.written, self.planned, strict=True):
            found = body.take(name) if body is not None and name in changed else self.values.get(name)
            if found is None:
                raise ProgramError(
                    f"{self.op}: its sub-block did not run, and {name!r} has no value from before"
                    f"\n  Do: give {name!r} a value before the block, such as by layers.fill_constant"
                )
            check_fits(name, found, spec)
            tensors.append(found)
        if tensors:
            self.frame.write("Out", tensors)
        if self.steps is not None:
            self.steps.after = {n: t._known() for n, t in zip(self.written, tensors, strict=True)}
        if self.frame.wants(self.steps_slot):
            self.frame.write(self.steps_slot, [self.steps if self.steps is not None else Steps()])


def _truth(array: Any, name: str) -> bool:
    if array.size != 1:
        raise ProgramError(f"the condition {name!r} has dims {list(array.shape)}; expected one element")
    return bool(array.reshape(-1)[0])


def _trips(run: _Run, body: Body, index: int, condition: str) -> int | None:
    """How often a body runs, if counters say it; None: its condition has to be read."""
    if body.trips is UNKNOWN:
        body.trips = find_trip_count(run.op.block.program.blocks[index], condition)
    counted = body.trips
    if counted is None or not isinstance(counted, TripCount):
        return None
    tensors = {name: run.values[name] for name in counted.names if name in run.values}
    if len(tensors) != len(set(counted.names)) or any(tensor._known().size != 1 for tensor in tensors.values()):
        return None
    return counted.of({name: int(tensor.numpy().reshape(-1)[0]) for name, tensor in tensors.items()})


def _run_while(frame: Frame, op: Operator) -> None:
    run = _Run(frame, op, "X", "StepScopes")
    name, index, most = op.attrs["condition"], op.attrs["sub_block"], op.attrs["max_iterations"]
    go = _truth(frame.read("Condition")[0].numpy(), name)
    if not go:
        run.finish(None)
        return
    body = run.body(index)
    try:
        random = run.steps is not None and is_random(body.program)
        call, program, scope, fetches = body.executor.run, body.program, body.scope, [name]
        count, trips = 0, _trips(run, body, index, name)
        if trips is not None and not 0 < most < trips:
            for left in reversed(range(trips)):
                if run.steps is not None:
                    run.keep(index, body, random)
                call(program, None, [] if left else fetches, scope=scope)  # the last one tells of deferred errors
            go = False
        while go:
            if count == most > 0:
                raise OutOfRangeError(
                    f"{op}: its condition {name!r} still holds after {most} iterations, which is its limit"
                    "\n  Do: see that the block changes the condition, or give max_iterations= more"
                )
            count += 1
            if run.steps is not None:
                run.keep(index, body, random)
            (array,) = call(program, None, fetches, scope=scope)
            go = bool(array) if array.size == 1 else _truth(array, name)
        run.finish(body)
    finally:
        body.end()


def _run_conditional(frame: Frame, op: Operator) -> None:
    run = _Run(frame, op, "Input", "Scope")
    conditions = frame.read("Cond")
    if op.attrs["is_scalar_condition"]:
        holds = _truth(conditions[0].numpy(), op.input("Cond")[0])
    else:
        holds = all(tensor._known().size for tensor in conditions)
    index = op.attrs["sub_block"] if holds else op.attrs["else_block"]
    if index is None:
        run.finish(None)
        return
    body = run.body(index)
    try:
        run.keep(index, body, run.steps is not None and is_random(body.program))
        body.executor.run(body.program, None, [], scope=body.scope)
        run.finish(body)
    finally:
        body.end()


# Gradients


def _grad(maker: Any, slot: str, steps_slot: str, type: str) -> None:
    """Append the operator that takes the steps back, last first."""
    op: Operator = maker.operator
    if op.attrs["is_test"]:
        return
    inside, written = op.attrs["inside"], op.attrs["written"]
    wanted = [i for i in range(len(inside)) if maker.wants(slot, i)]
    names = [inside[i] for i in wanted]
    blocks = [op.attrs[a] for a in ("sub_block", "else_block") if op.attrs.get(a) is not None]
    program = op.block.program
    reached: set[str] = set()
    for index in blocks:
        try:
            found = step_gradient(program.blocks[index], written, names, inside)
        except NoDerivativeError as exc:
            origins = maker.origins(slot)
            first = next(iter(origins.values()))
            raise NoDerivativeError(str(exc), origins.get(exc.origin, first)) from None
        reached.update(found.reached)
    reached.update(written)
    wanted = [i for i in wanted if inside[i] in reached]
    starts = {written[i]: name for i in range(len(written)) if (name := maker.finished("Out", i)) is not None}
    maker.asked.add(slot)
    lent = [i for i in range(len(inside)) if inside[i] not in written]
    inputs = {
        "X": [maker.input(slot, i) for i in lent],
        "Steps": steps_of(op, steps_slot),
        "Out" + GRAD: list(starts.values()),
    }
    attrs = {
        "sub_block": op.attrs["sub_block"],
        "inside": [inside[i] for i in lent],
        "written": list(written),
        "given": list(starts),
        "wanted": [inside[i] for i in wanted],
    }
    if "else_block" in op.attrs:
        attrs["else_block"] = op.attrs["else_block"]
    maker.op(type, inputs, {"X" + GRAD: [maker.input_grad(slot, i) for i in wanted]}, attrs)


def steps_of(op: Operator, slot: str) -> list[str]:
    """The variable that holds what the gradient needs, by name; it is made where the operator was built without."""
    if not op.output(slot):
        made = op.block.create_temporary(prefix=f"{op.type}.steps")
        made.declare(KEPT)
        made.type = VarType.STEP_SCOPES
        op._outputs = slots({**op.outputs, slot: [made.name]})
        op.block.program.touch()
    return op.output(slot)


def _run_grad(frame: Frame, op: Operator) -> None:
    before_state(frame, None)
    attrs = op.attrs
    steps = frame.read("Steps")[0]
    assert isinstance(steps, Steps)
    context = frame.context
    lent = dict(zip(attrs["inside"], frame.read("X"), strict=True))
    gradients = dict(zip(attrs["given"], frame.read("Out" + GRAD), strict=True))
    wanted: Sequence[str] = attrs["wanted"]
    bodies: dict[int, Body] = {}
    program = op.block.program
    try:
        for index in dict.fromkeys(index for index, _, _ in steps.started):
            make = partial(gradient_program, program.blocks[index], attrs["written"], wanted, steps.before)
            body = bodies[index] = body_of(frame, op, index, make)
            body.begin(frame)
            for name, tensor in lent.items():
                if name in body.program.global_block().vars:
                    body.lend(name, tensor)
        _back(steps, bodies, gradients, wanted)
    finally:
        for body in bodies.values():
            body.end()
    for name in wanted:
        if name not in gradients:
            gradients[name] = zeros(steps.before[name], context)
    tensors = [gradients[name] for name in wanted]
    for name, tensor, spec in zip(wanted, tensors, frame.planned("X" + GRAD), strict=True):
        check_fits(name + GRAD, tensor, spec)
    frame.write("X" + GRAD, tensors)


def gradient_program(
    block: Block, targets: Sequence[str], wanted: Sequence[str], before: Collection[str]
) -> tuple[Program, list[str]]:
    """What :func:`body_of` makes a body of that takes the gradient of one step."""
    step = step_gradient(block, targets, wanted, before)
    return step.program, step.inputs


def _back(steps: Steps, bodies: Mapping[int, Body], gradients: dict[str, Tensor], wanted: Sequence[str]) -> None:
    """Take the steps back; ``gradients`` is changed into that of the values before the first."""
    last: Body | None = None
    for number, (index, values, runs) in reversed(list(enumerate(steps.started))):
        body = bodies[index]
        if last is not body:
            ends = steps.after if number == len(steps.started) - 1 else {}
            for name in body.inputs:
                tensor = gradients.get(name)
                if tensor is not None:
                    body.give(name + STEP, tensor)
                else:
                    spec = ends.get(name) or steps.before.get(name)
                    assert spec is not None
                    body.set_zeros(name + STEP, spec)
        for name, tensor in values.items():
            if name in body.program.global_block().vars:
                body.give(name, tensor)
        body.scope.runs = dict(runs) if runs is not None else None
        body.executor.run(body.program, None, [], scope=body.scope)
        last = body
    if last is not None:
        for name in last.inputs:
            if name in wanted and (found := last.take(name + STEP)) is not None:
                gradients[name] = found


_NAMES = (
    Attr("inside", "strs", (), doc="the names by which the blocks know what is read, one a variable of the slot"),
    Attr("written", "strs", (), doc="the names by which they know what they write, one a variable of Out"),
)
_BLOCK = Attr("sub_block", "block", doc="the index of the block")
_TEST = Attr("is_test", "bool", False, doc="True: nothing is kept for a gradient")
_OF_GRADIENT = (
    Attr("given", "strs", (), doc="the names whose gradients Out@GRAD holds"),
    Attr("wanted", "strs", (), doc="the names whose gradients X@GRAD takes"),
)


def _register_gradient(type: str, attrs: tuple[Attr, ...], doc: str, source: str) -> None:
    register_op(
        type,
        Differentiation(no_gradient=dict.fromkeys(("X", "Steps", "Out" + GRAD), NO_SECOND)),
        Inference(dynamic=True),
        Execution(run=_run_grad),
        inputs=(
            Slot(
                "X",
                duplicable=True,
                dispensable=True,
                run_place=True,
                kinds=BOTH,
                doc="what the blocks read and do not write",
            ),
            Slot("Steps", on_host=True, doc="what the forward operator kept"),
            Slot("Out" + GRAD, duplicable=True, dispensable=True, run_place=True, kinds=BOTH),
        ),
        outputs=(Slot("X" + GRAD, duplicable=True, run_place=True),),
        attrs=(*attrs, *_NAMES, *_OF_GRADIENT),
        doc=doc,
        source=source,
    )


register_op(
    "while",
    Differentiation(rule=lambda maker: _grad(maker, "X", "StepScopes", "while_grad")),
    Inference(dynamic=True),
    Execution(run=_run_while),
    inputs=(
        Slot("X", duplicable=True, dispensable=True, run_place=True, kinds=BOTH, doc="all that the block uses"),
        Slot("Condition", on_host=True, doc="bool, of one element: whether there is a first iteration"),
    ),
    outputs=(
        Slot("Out", duplicable=True, dispensable=True, run_place=True, doc="all that the block writes"),
        Slot("StepScopes", dispensable=True, on_host=True, doc="what the gradient needs of each iteration"),
    ),
    attrs=(
        _BLOCK,
        *_NAMES,
        _TEST,
        Attr("condition", "str", doc="the name by which the block writes the condition"),
        Attr("max_iterations", "int", 0, minimum=0, doc="more are an error; 0: as many as there are"),
    ),
    dtypes={"Condition": ("bool",)},
    doc="Runs the block while the condition holds, which the block writes; Out is what the last iteration left, and X "
    "if there is none",
    source="Fluid controlflow/while_op.cc",
)
_register_gradient(
    "while_grad",
    (_BLOCK,),
    "The gradient of while: its iterations, last first, each computed once more from the values at its start",
    "Fluid controlflow/while_op.cc",
)

_ELSE = Attr("else_block", "block", optional=True, doc="the index of the block that runs where the other does not")
register_op(
    "conditional_block",
    Differentiation(rule=lambda maker: _grad(maker, "Input", "Scope", "conditional_block_grad")),
    Inference(dynamic=True),
    Execution(run=_run_conditional),
    inputs=(
        Slot("Input", duplicable=True, dispensable=True, run_place=True, kinds=BOTH, doc="all that the blocks use"),
        Slot("Cond", duplicable=True, on_host=True, doc="the condition: bool, of one element, if it is a scalar"),
    ),
    outputs=(
        Slot("Out", duplicable=True, dispensable=True, run_place=True, doc="all that the blocks write"),
        Slot("Scope", dispensable=True, on_host=True, doc="what the gradient needs"),
    ),
    attrs=(
        _BLOCK,
        _ELSE,
        *_NAMES,
        _TEST,
        Attr("is_scalar_condition", "bool", True, doc="False: the condition is that no variable of Cond is empty"),
    ),
    doc="Runs the block if the condition holds, else the other block, if there is one; what is not written stays",
    source="Fluid controlflow/conditional_block_op.cc",
)
_register_gradient(
    "conditional_block_grad",
    (_BLOCK, _ELSE),
    "The gradient of conditional_block: that of the block which ran",
    "Fluid controlflow/conditional_block_op.cc",
)
