"""The interpreter: runs a plan step by step. It is the reference for compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from fluidlite.base.errors import DeviceError
from fluidlite.compiler.body_executors import MakeExecutor
from fluidlite.compiler.frame import Frame, take_state, uses_of_state, written_state
from fluidlite.compiler.instrumentation import Observer, observation, observers, timed_run, timer
from fluidlite.compiler.kernel_checks import kernel_check
from fluidlite.compiler.kernel_runs import (
    NO_RANDOM,
    prepare_step,
    random_words,
    run_kernel,
    set_compute_specs,
    take_arrays,
    with_spec,
)
from fluidlite.compiler.planning.plan import Control, Launch, Move, Pending, Plan, Step
from fluidlite.compiler.run_errors import _kernel_text, fail, raise_before_state_write, raise_deferred_errors
from fluidlite.memory.sharing import lock_contexts
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.place import Place
from fluidlite.program.kernel_io import IO
from fluidlite.program.scope import Scope
from fluidlite.tensor import tensor_cache, transfer
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray
from fluidlite.tensor.tensor_spec import Spec

MAX_PLAN_RETRIES = 1000
"""Maximum number of plans for one run, if other threads replace its state between plan and run."""


def run_plan(
    plan: Plan,
    feeds: Mapping[str, Tensor],
    scope: Scope,
    bodies: MakeExecutor | None = None,
) -> tuple[list[tuple[Any, Spec]], Plan]:
    """Run a plan; return the fetched values as new host arrays, each with its Spec, and the plan of the last stage.

    Raises FluidError with the operator and the user's line; later runs are not affected.
    Raises StateMovedError, without effects, if state has changed since it was planned.
    """
    frame = Frame(plan, scope, {})
    frame.bodies = bodies
    for place in plan.queues:
        frame.contexts[place] = get_context(place)
    for tensor in feeds.values():  # before any lock is acquired: two runs could deadlock
        if tensor.place is not None:
            transfer.order_after_writes(tensor, frame.contexts.get(tensor.place) or get_context(tensor.place))
    contexts = list(frame.contexts.values())
    with lock_contexts(contexts, lambda: uses_of_state(plan.state_uses, scope, frame.contexts, alone=False)):
        take_state(plan, scope, frame.values)
        if feeds:
            written = written_state(plan, scope)
            frame.values.update({plan.feed_keys[name]: written.without_alias(tensor) for name, tensor in feeds.items()})
        try:
            with timed_run(frame, contexts):
                run_stages(frame)
                return read_fetches(frame), frame.plan
        except BaseException:
            for context in frame.contexts.values():
                context.drop_deferred_errors()  # errors of this run must not be raised by the next
            raise


def plan_next_stage(frame: Frame, pending: Pending) -> None:
    """Read the values that the next stage depends on, and continue with its plan."""
    fallible = [context for context in frame.contexts.values() if context.may_have_error]
    if fallible:
        raise_deferred_errors(frame, fallible)  # the values may come from a wrong index
    values = {each: tuple(frame.values[key].numpy().reshape(-1).tolist()) for each, key in pending.values.items()}
    specs = {each: frame.values[key]._required_spec() for each, key in pending.dims.items()}
    frame.plan = pending.next(values, specs)


def run_stages(frame: Frame) -> None:
    """Run the steps of a plan and those of all later stages."""
    _run_timed(frame)
    while frame.plan.pending is not None:
        plan_next_stage(frame, frame.plan.pending)
        _run_timed(frame)


def _run_timed(frame: Frame) -> None:
    timing = timer()
    if timing is None:
        _run_steps(frame, frame.plan.steps)
        return
    with closing(timing.timed(frame, frame.plan.steps, frame.plan.steps)) as steps:
        _run_steps(frame, steps)


def _run_steps(frame: Frame, steps: Iterable[Step]) -> None:
    listeners = observers()
    values, make, take, give = frame.values, Tensor.of, tensor_cache.take, tensor_cache.give
    contexts = [frame.contexts[place] for place in frame.plan.places]
    step: Any = None
    try:
        for step in steps:
            kind = type(step)
            if kind is Launch:
                context = contexts[step.where]
                ready = step.runs.get(context)
                if step.simple and ready is not None and not ready.workspace and not listeners:
                    # Hot path: _launch, reduced to what a plain operator needs.
                    tensors = [values[key] for key in step.ins]
                    for spec, key in step.makes:
                        tensor = take(context, spec)
                        if tensor is None:
                            tensor = make(spec, context.place)
                        values[key] = tensor
                        tensors.append(tensor)
                    result = ready.run(context, IO(step.call, tensors, context, step.op_index))
                    if result is not None:
                        take_arrays(result, tensors[len(step.ins) :], context)
                    tensors.clear()  # a dead tensor is recycled only without other references
                else:
                    _launch(step, frame, values, context, listeners)
                for key, context_index in step.recycle:
                    dead_tensor = values.pop(key, None)
                    if dead_tensor is not None:
                        give(contexts[context_index], dead_tensor)
            elif kind is Move:
                run_move(step, frame)
                continue
            else:
                run_control(step, frame)
            for key in step.free:
                values.pop(key, None)
    except Exception as exc:
        fail(exc, step, frame)


def _launch(step: Launch, frame: Frame, values: dict[str, Tensor], context: Context, listeners: list[Observer]) -> None:
    call = step.call
    tensors: list[Tensor] = []
    for key, spec in zip(step.ins, step.in_specs, strict=True):
        if key is None:
            tensors.append(Tensor.of(spec, context.place))
        else:
            tensors.append(with_spec(values[key], spec) if step.layout_agnostic else values[key])
    outputs: list[Tensor] = []
    for out in step.outs:
        if out.shares >= 0:
            tensor = tensors[out.shares]
            if tensor.spec is not out.spec:
                tensor = with_spec(tensor, out.spec)
            tensor.wrote()
        else:
            cached = tensor_cache.take(context, out.spec)
            tensor = cached if cached is not None else Tensor.of(out.spec, context.place)
        outputs.append(tensor)
    if step.layout_agnostic:
        set_compute_specs(outputs, call)
    tensors += outputs
    if not step.skip:
        if step.writes_state:
            raise_before_state_write(frame, context if step.guarded else None)
        ready = step.runs.get(context) or prepare_step(step, context)
        random = NO_RANDOM if step.random is None else random_words(step.random, frame.scope)
        workspace = None
        if ready.workspace:
            space = Spec.of((ready.workspace,), "uint8")
            workspace = tensor_cache.take(context, space)
            if workspace is None:
                workspace = Tensor.of(space, context.place)
                workspace.allocate(context)
        io = IO(call, tensors, context, step.op_index, random, workspace)
        check = kernel_check() if listeners else None
        if check is None:
            run_kernel(ready.run, context, io, outputs)
        else:
            launch = partial(run_kernel, ready.run, context, io, outputs)
            check.launch(step, context, tensors[: len(step.ins)], outputs, workspace, launch)
        if workspace is not None:
            tensor_cache.give(context, workspace)
    for out, tensor in zip(step.outs, outputs, strict=True):
        if step.layout_agnostic:
            tensor.spec, tensor._array = out.spec, None
        if tensor.allocation is None:
            if tensor.spec is None or (tensor.spec.size and not step.skip):
                raise DeviceError(f"the kernel wrote nothing to {out.key}{_kernel_text(step, None)}")
            tensor.allocate(context)  # no bytes, but a reader may need its array
        values[out.key] = tensor
        if out.state and out.shares < 0:
            values[out.key] = frame.store(out.key, tensor, context, exchange=True)
    if listeners:
        result = observation(step, tensors)
        for observer in listeners:
            observer(result)


def run_move(step: Move, frame: Frame) -> None:
    source = frame.values[step.from_key]
    context = frame.contexts[step.target]
    if not step.into_state:
        frame.values[step.to_key] = transfer.transfer(source, context)
        return
    if step.why == "state":
        source.move_to(step.target)
        return
    raise_before_state_write(frame, None)
    frame.values[step.to_key] = frame.store(step.to_key, source, context, alone=False)


def run_control(step: Control, frame: Frame) -> None:
    assert step.op.definition.run is not None
    outs = [out for group in step.outs.values() for out in group]
    if any(out.state for out in outs):
        raise_before_state_write(frame, None)
    frame.step = step
    step.op.definition.run(frame, step.op.operator)
    for out in outs:
        if out.key not in frame.values:
            raise DeviceError(f"{step.op} wrote nothing to {out.key}")


def read_fetches(frame: Frame, array_of: Callable[[str, Tensor], Any] | None = None) -> list[tuple[Any, Spec]]:
    """Read the fetched values and the status words, with one wait for each context.

    ``array_of``: returns the array of a value on the host; default: a copy.
    """
    fetched: list[tuple[Any, Spec]] = []
    read_contexts: dict[Place, Context] = {}
    for key, context, tensor, spec in frame.fetched():
        if _is_host_array(tensor, context):
            array = np.array(tensor.native()) if array_of is None else array_of(key, tensor)
            if array.nbytes and array.flags.writeable:  # no view
                context.counts.copy_out += 1
                context.counts.bytes_out += array.nbytes
        else:
            array = begin_read(tensor, context)
            read_contexts[context.place] = context
        fetched.append((array, tensor.spec or spec))
    suspects = [context for context in frame.contexts.values() if context.may_have_error]
    if suspects or read_contexts:
        raise_deferred_errors(frame, suspects, wait_for=read_contexts)
    return fetched


def _is_host_array(tensor: Tensor, context: Context) -> bool:
    """Whether the host can read a tensor in place, without waiting; an empty tensor may have no memory."""
    if isinstance(tensor, TensorArray) or tensor.allocation is None or not tensor.contiguous:
        return False
    return context.unit.info.host and context.xp is not None and bool(context.array.eager)


def begin_read(tensor: Tensor, context: Context) -> Any:
    """Enqueue a copy to new host arrays: one for a tensor; a list of arrays with their Specs for a tensor array."""
    if isinstance(tensor, TensorArray):
        return [(transfer.begin_read(each, context), each._required_spec()) for each in tensor.present()]
    return transfer.begin_read(tensor, context)
