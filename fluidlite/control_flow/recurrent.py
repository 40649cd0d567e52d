"""recurrent: runs a block for each step of sequences of equal length, with states between the steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fluidlite.base.errors import ProgramError, ShapeError
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.run_errors import raise_before_state_write
from fluidlite.control_flow.bodies import BlockBody, StepRecords, body_of, check_fits, empty, is_random, zeros
from fluidlite.control_flow.loops_branches import NO_SECOND_GRADIENT, gradient_program, steps_of
from fluidlite.control_flow.sub_program import STEP_GRAD, body_program, step_gradient
from fluidlite.program.gradient_paths import NoDerivativeError
from fluidlite.program.opdef import GRAD, Attr, Slot
from fluidlite.program.operator import Operator
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor

_SEQUENCES, _STATES, _PARAMETERS = "inputs", "initial_states", "parameters"


def step_view(tensor: Tensor, at: int) -> Tensor:
    """A view of one step of a sequence."""
    spec = tensor._required_spec()
    step_spec = spec.with_(dims=spec.dims[1:], lod=())
    return Tensor.of(step_spec, tensor.place, tensor.allocation, tensor.byte_offset + at * step_spec.nbytes)  # type: ignore[arg-type]


def _sequences(frame: Frame, op: Operator) -> tuple[list[Tensor], int]:
    sequences = frame.read(_SEQUENCES)
    lengths = {tensor.dims[0] for tensor in sequences}
    if len(lengths) != 1:
        names = ", ".join(f"{n} {list(t.dims)}" for n, t in zip(op.input(_SEQUENCES), sequences, strict=True))
        raise ShapeError(f"{op}: its sequences have different lengths: {names}; expected one first dim")
    for tensor in sequences:
        if tensor.allocation is None:
            tensor.allocate(frame.context)
    return sequences, lengths.pop()


def _step_order(op: Operator, length: int) -> Sequence[int]:
    return range(length - 1, -1, -1) if op.attrs["reverse"] else range(length)


def _run(frame: Frame, op: Operator) -> None:
    raise_before_state_write(frame, None)
    attrs, context = op.attrs, frame.context
    sequences, length = _sequences(frame, op)
    index = attrs["sub_block"]
    body = body_of(frame, op, index, lambda: (body_program(op.block.program.blocks[index]), ()))
    steps = StepRecords(bool(frame.output_count("step_scopes")) and not attrs["is_test"])
    outs: list[Tensor] = []
    body.begin(frame)
    try:
        for name, tensor in zip(attrs["ex_states"], frame.read(_STATES), strict=True):
            body.copy_in(name, tensor)
        for name, tensor in zip(attrs["inside"], frame.read(_PARAMETERS), strict=True):
            body.share(name, tensor)
        random = steps.recording and is_random(body.program)
        for at in _step_order(op, length):
            steps.record(index, body, attrs["ex_states"], random)
            for name, tensor in zip(attrs["step_inputs"], sequences, strict=True):
                body.copy_in(name, step_view(tensor, at))
            body.executor.run(body.program, None, [], scope=body.scope)
            step_outputs = [_step_output(body, name) for name in attrs["step_outputs"]]
            if not outs:
                outs = [empty(x._required_spec().with_(dims=(length, *x.dims), lod=()), context) for x in step_outputs]
            for name, tensor, out in zip(attrs["step_outputs"], step_outputs, outs, strict=True):
                target = step_view(out, at)
                if target.spec != tensor.spec:
                    raise ShapeError(f"{op}: step {at} of {name!r} is {tensor.spec!r}; expected {target.spec!r}")
                transfer.transfer(tensor, context, into=target)
        ends = ((name, body.value(name)) for name in attrs["ex_states"])
        steps.after = {name: tensor._required_spec() for name, tensor in ends if tensor is not None}
    finally:
        body.end()
    declared = frame.planned("outputs")
    if not length:
        if not all(spec.is_static for spec in declared):
            raise ShapeError(f"{op}: there is no step, and the dims of a step's output are not declared")
        outs = [zeros(spec, context) for spec in declared]
    for name, tensor, spec in zip(attrs["step_outputs"], outs, declared, strict=True):
        check_fits(name, tensor, spec)
    frame.write("outputs", outs)
    if frame.output_count("step_scopes"):
        frame.write("step_scopes", [steps])


def _step_output(body: BlockBody, name: str) -> Tensor:
    value = body.value(name)
    if value is None:
        raise ProgramError(f"the block of recurrent has not written its output {name!r}")
    return value


def _grad(maker: Any) -> None:
    op: Operator = maker.operator
    if op.attrs["is_test"]:
        return
    attrs = op.attrs
    named = {_SEQUENCES: attrs["step_inputs"], _STATES: attrs["ex_states"], _PARAMETERS: attrs["inside"]}
    positions = {slot: [i for i in range(len(names)) if maker.output_count(slot, i)] for slot, names in named.items()}
    grad_names = [named[slot][i] for slot, indices in positions.items() for i in indices]
    block = op.block.program.blocks[attrs["sub_block"]]
    starts = [(name, i) for i, name in enumerate(attrs["step_outputs"]) if maker.finished("outputs", i) is not None]
    output_names = [name for name, _ in starts]
    targets = (*attrs["ex_states"], *output_names)
    try:
        step_gradient(block, targets, grad_names, _step_inputs(op))
    except NoDerivativeError as exc:
        slot = next(slot for slot in named if positions[slot])
        raise NoDerivativeError(str(exc), next(iter(maker.origins(slot).values()))) from None
    maker.differentiated_slots.update(named)
    steps = steps_of(op, "step_scopes")
    inputs: dict[str, Any] = {slot: [maker.input(slot, i) for i in range(len(names))] for slot, names in named.items()}
    inputs |= {"steps": steps, "outputs" + GRAD: [maker.finished("outputs", i) for _, i in starts]}
    step_attrs = {
        name: attrs[name] for name in ("sub_block", "inside", "step_inputs", "ex_states", "step_outputs", "reverse")
    }
    outs = {slot + GRAD: [maker.input_grad(slot, i) for i in indices] for slot, indices in positions.items() if indices}
    maker.op("recurrent_grad", inputs, outs, {**step_attrs, "given": output_names, "wanted": grad_names})


def _step_inputs(op: Operator) -> tuple[str, ...]:
    return (*op.attrs["step_inputs"], *op.attrs["ex_states"], *op.attrs["inside"])


def _run_grad(frame: Frame, op: Operator) -> None:
    raise_before_state_write(frame, None)
    attrs, context = op.attrs, frame.context
    steps = frame.read("steps")[0]
    assert isinstance(steps, StepRecords)
    sequences, length = _sequences(frame, op)
    states = dict(zip(attrs["ex_states"], frame.read(_STATES), strict=True))
    parameters = dict(zip(attrs["inside"], frame.read(_PARAMETERS), strict=True))
    starts = dict(zip(attrs["given"], frame.read("outputs" + GRAD), strict=True))
    grad_names, index = attrs["wanted"], attrs["sub_block"]
    block = op.block.program.blocks[index]
    targets = (*attrs["ex_states"], *attrs["given"])
    body = body_of(frame, op, index, partial(gradient_program, block, targets, grad_names, _step_inputs(op)))
    grads: dict[str, Tensor] = {}
    step_inputs = dict(zip(attrs["step_inputs"], sequences, strict=True))
    for name in grad_names:
        if name in step_inputs:
            grads[name] = zeros(step_inputs[name]._required_spec().with_(lod=()), context)
    body.begin(frame)
    try:
        for name, tensor in parameters.items():
            body.share(name, tensor)
        for name, tensor in (*states.items(), *parameters.items()):
            if name in body.inputs:
                body.set_zeros(name + STEP_GRAD, steps.after.get(name) or tensor._required_spec())
        for (_, values, runs), at in reversed(list(zip(steps.records, _step_order(op, length), strict=True))):
            for name, tensor in values.items():
                body.copy_in(name, tensor)
            for name, tensor in step_inputs.items():
                body.copy_in(name, step_view(tensor, at))
                if name in grad_names:
                    body.set_zeros(name + STEP_GRAD, step_view(tensor, at)._required_spec())
            for name, start in starts.items():
                if name in body.inputs:
                    body.copy_in(name + STEP_GRAD, step_view(start, at))
            body.scope.runs = dict(runs) if runs is not None else None
            body.executor.run(body.program, None, [], scope=body.scope)
            for name in step_inputs:
                if name in grad_names:
                    transfer.transfer(_step_output(body, name + STEP_GRAD), context, into=step_view(grads[name], at))
        for name in grad_names:
            if name not in step_inputs:
                gradient = body.copy_out(name + STEP_GRAD)
                assert gradient is not None
                grads[name] = gradient
    finally:
        body.end()
    for slot, names in ((_SEQUENCES, step_inputs), (_STATES, states), (_PARAMETERS, parameters)):
        tensors = [grads[name] for name in grad_names if name in names]
        if tensors:
            frame.write(slot + GRAD, tensors)


_INPUTS = (
    Slot(_SEQUENCES, duplicable=True, run_place=True, doc="[steps, ...]: the sequences"),
    Slot(_STATES, duplicable=True, dispensable=True, run_place=True, doc="the states before the first step"),
    Slot(_PARAMETERS, duplicable=True, dispensable=True, run_place=True, doc="further variables that the block reads"),
)
_ATTRS = (
    Attr("sub_block", "block", doc="the index of the block"),
    Attr("inside", "strs", (), doc="the names of the parameters in the block"),
    Attr("step_inputs", "strs", (), doc="the names of a step of each sequence in the block"),
    Attr("ex_states", "strs", (), doc="the names of the states, which it reads and then writes"),
    Attr("step_outputs", "strs", (), doc="the names of the variables whose values of all steps are the outputs"),
    Attr("reverse", "bool", False, doc="True: run from the last step to the first"),
)
register_op(
    "recurrent",
    Differentiation(rule=_grad),
    Inference(dynamic=True),
    Execution(run=_run),
    inputs=_INPUTS,
    outputs=(
        Slot("outputs", duplicable=True, run_place=True, doc="[steps, ...]"),
        Slot("step_scopes", dispensable=True, on_host=True, doc="the records of each step, for the gradient"),
    ),
    attrs=(*_ATTRS, Attr("is_test", "bool", False, doc="True: nothing is saved for a gradient")),
    doc="Runs the block once for each step; the next step reads the states that it writes",
    source="Fluid recurrent_op.cc",
)
register_op(
    "recurrent_grad",
    Differentiation(
        no_gradient=dict.fromkeys((*(slot.name for slot in _INPUTS), "steps", "outputs" + GRAD), NO_SECOND_GRADIENT)
    ),
    Inference(dynamic=True),
    Execution(run=_run_grad),
    inputs=(
        *_INPUTS,
        Slot("steps", on_host=True, doc="the step records of the forward operator"),
        Slot("outputs" + GRAD, duplicable=True, dispensable=True, run_place=True),
    ),
    outputs=tuple(
        Slot(slot + GRAD, duplicable=True, dispensable=True, run_place=True)
        for slot in (_SEQUENCES, _STATES, _PARAMETERS)
    ),
    attrs=(
        *_ATTRS,
        Attr("given", "strs", (), doc="the names whose gradients outputs@GRAD holds"),
        Attr("wanted", "strs", (), doc="the names whose gradients are computed, slot by slot"),
    ),
    doc="The gradient of recurrent: the steps, last first, each recomputed from the states before it",
    source="Fluid recurrent_op.cc",
)
