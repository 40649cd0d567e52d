"""The interpreter: runs a Plan step by step. The reference that compiled code is held against."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from sys import getrefcount
from typing import Any, NoReturn

import numpy as np

from fluidlite.base.errors import DeviceError, DeviceLost, FluidError, OutOfMemoryError, OutOfRangeError, ProgramError
from fluidlite.base.fork import first_in_child
from fluidlite.framework import recycle, transfer
from fluidlite.framework.call import Call, located
from fluidlite.framework.choice import Choice
from fluidlite.framework.io import IO
from fluidlite.framework.kernel_checks import kernel_check
from fluidlite.framework.kernels import Run
from fluidlite.framework.observe import Observer, observation, observers
from fluidlite.framework.plan import Control, Launch, Move, Pending, Plan
from fluidlite.framework.program import Program
from fluidlite.framework.scope import Scope
from fluidlite.framework.spec import Spec
from fluidlite.framework.tensor import Tensor
from fluidlite.memory.sharing import Use, turn
from fluidlite.platform.context import Context
from fluidlite.platform.device import ContextBase
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place
from fluidlite.platform.pool import get_context

_process_seed = 0


def _draw_seed() -> None:
    global _process_seed
    _process_seed = int.from_bytes(os.urandom(8)) | 1


_draw_seed()
first_in_child(_draw_seed)  # workers that are forks of one process draw numbers of their own
MOST_TRIES = 1000
"""How often a run is planned anew, where other threads replace state between plan and run again and again."""
NO_RANDOM = (0, 0, 0, 0)


class LateError(OutOfRangeError):
    """An index out of range that a device recorded, found when the host looked; it names its operator."""


class StateMovedError(ProgramError):
    """State that a plan was made for is another when it is the plan's turn: it has to be planned again."""


class Frame:
    """One run: values by key, the contexts of its places, and the scope."""

    __slots__ = ("contexts", "place", "plan", "program", "scope", "step", "values")

    def __init__(self, plan: Plan, program: Program, scope: Scope, values: dict[str, Tensor]) -> None:
        self.plan = plan
        self.program = program
        self.scope = scope
        self.place = plan.place
        self.values = values
        self.contexts: dict[Place, Context] = {}
        self.step: Control | None = None

    # For operators that run themselves

    def read(self, slot: str) -> list[Tensor]:
        """Values of an input slot of the operator that runs; an absent slot has none."""
        assert self.step is not None
        return [self.values[key] for key in self.step.ins.get(slot, ())]

    def wants(self, slot: str) -> int:
        """How many variables an output slot of it has."""
        assert self.step is not None
        return len(self.step.outs.get(slot, ()))

    def write(self, slot: str, tensors: Sequence[Tensor]) -> None:
        """Give the variables of an output slot their values, which lie where the plan expects them."""
        assert self.step is not None
        wanted = self._place_of(self.step, slot)
        for out, tensor in zip(self.step.outs[slot], tensors, strict=True):
            if tensor.place is not None and tensor.place != wanted:
                raise ProgramError(
                    f"{self.step.op} wrote {slot} on {tensor.place}; it belongs on {wanted}"
                    "\n  Do: set the tensor there, or declare the slot with on_host=True"
                )
            if out.state:
                variable = self.scope.find_var(out.key) or self.scope.var(out.key)
                tensor = variable.tensor.share_data_with(tensor)
            self.values[out.key] = tensor

    def _place_of(self, step: Control, slot: str) -> Place:
        """Where an output slot lies: on the host, if it says so; else where the first input does."""
        declared = step.op.definition.output(slot)
        if declared is not None and declared.on_host:
            return devices.host()
        first = step.ins.get(step.op.definition.inputs[0].name) if step.op.definition.inputs else None
        return (self.values[first[0]].place if first else None) or self.place


def run_plan(
    plan: Plan, program: Program, feeds: Mapping[str, Tensor], scope: Scope
) -> tuple[list[tuple[Any, Spec]], Plan]:
    """Run a plan; return the fetched values as fresh host arrays, each with its Spec, and the plan that ran last.

    Raises
    ------
    FluidError
        With the operator and the user's line. The next run works.
    StateMovedError
        If state is not as the plan was told; nothing was done.
    """
    frame = Frame(plan, program, scope, {})
    for place in plan.queues:
        frame.contexts[place] = get_context(place)
    for tensor in feeds.values():  # before a lock is held: two runs that wait for each other would wait for ever
        if tensor.place is not None:
            transfer.ready(tensor, frame.contexts.get(tensor.place) or get_context(tensor.place))
    touched = plan.touched(program)
    with ExitStack() as stack:
        contexts = list(frame.contexts.values())
        stack.enter_context(turn(contexts, lambda: uses_of_state(touched, scope, frame.contexts, alone=False)))
        for context in contexts:
            if type(context.raw).activate is not ContextBase.activate:
                stack.enter_context(context.raw.activate())
        take_state(plan, scope, frame.values)
        frame.values.update({plan.feed_keys[name]: tensor for name, tensor in feeds.items()})
        try:
            run_steps(frame, observers())
            while frame.plan.pending is not None:
                go_on(frame, frame.plan.pending)
                run_steps(frame, observers())
            return read_fetches(frame), frame.plan
        except BaseException:
            for context in frame.contexts.values():
                context.forget_late()  # what this run recorded is not the next one's error
            raise


def uses_of_state(
    touched: Mapping[str, bool], scope: Scope, contexts: Mapping[Place, Context], alone: bool = True
) -> Iterator[Use]:
    """What a run does to the memory that state has now.

    ``touched`` says of each name whether it is written; without ``alone``, memory that its context alone has used is
    left out: it is that context's turn anyway.
    """
    for name, writes in touched.items():
        variable = scope.find_var(name)
        tensor = variable.tensor if variable is not None else None
        if tensor is None or tensor.allocation is None or tensor.place is None:
            continue
        allocation, context = tensor.allocation, contexts.get(tensor.place)
        if context is not None and (alone or allocation.sharing is not None or allocation.context is not context):
            yield Use(allocation, context, writes)


def take_state(plan: Plan, scope: Scope, values: dict[str, Tensor]) -> None:
    """Take the state that a plan reads, while it is the run's turn.

    Raises
    ------
    StateMovedError
        If it is not as the plan was told: another thread has moved it since, set it to other dims or to a strided view.
    """
    for name, read in plan.state.items():
        if not read:
            continue
        variable = scope.find_var(name)
        tensor = variable.tensor if variable is not None else None
        there = tensor is not None and tensor.allocation is not None and tensor.contiguous
        if tensor is None or not there or plan.given[name] != (tensor.spec, tensor.place):
            raise StateMovedError(f"state {name!r} became another while a run of it was planned")
        values[name] = tensor


def go_on(frame: Frame, pending: Pending) -> None:
    """Look at the values that the rest of the plan depends on, and take up its plan."""
    suspects = [context for context in frame.contexts.values() if context.suspect]
    if suspects:
        raise_late(frame, suspects)  # numbers that come of a wrong index are none
    values = {name: tuple(frame.values[key].numpy().reshape(-1).tolist()) for name, key in pending.values.items()}
    specs = {name: frame.values[key].spec for name, key in pending.dims.items()}
    frame.plan = pending.next(values, specs)  # type: ignore[arg-type]


def run_steps(frame: Frame, watching: list[Observer]) -> None:
    values, make, take, give = frame.values, Tensor.of, recycle.take, recycle.give
    contexts = [frame.contexts[place] for place in frame.plan.places]
    step: Any = None
    try:
        for step in frame.plan.steps:
            kind = type(step)
            if kind is Launch:
                context = contexts[step.where]
                ready = step.runs.get(context)
                if step.simple and ready is not None and ready[1] is None and not watching:
                    # What _launch does, less all that a plain operator has no need of: this is the hot path.
                    tensors = [values[key] for key in step.ins]
                    for spec, key in step.makes:
                        tensor = take(context, spec)
                        if tensor is None:
                            tensor = make(spec, context.place)
                        values[key] = tensor
                        tensors.append(tensor)
                    result = ready[0](context, IO(step.call, tensors, context, step.op_index))
                    if result is not None:
                        take_arrays(result, tensors[len(step.ins) :], context)
                    tensors.clear()  # what ends here must have no other holder to be recycled
                else:
                    _launch(step, frame, values, context, watching)
                for key, where in step.recycle:
                    done = values.pop(key, None)
                    if done is not None:
                        give(contexts[where], done)
            elif kind is Move:
                run_move(step, frame)
                continue
            else:
                run_control(step, frame)
            for key in step.free:
                values.pop(key, None)
    except Exception as exc:
        fail(exc, step, frame)


def fail(exc: Exception, step: Any, frame: Frame) -> NoReturn:
    """Raise what a step of a run raised again, with the operator, the user's line and the place."""
    if isinstance(exc, LateError):
        raise exc
    if isinstance(exc, OutOfRangeError):
        raise OutOfRangeError(f"{step.op}: {exc}" if isinstance(step, Launch) else str(exc)) from None
    if isinstance(exc, OutOfMemoryError):
        raise OutOfMemoryError(f"{what(step)}: {exc}") from exc
    if isinstance(exc, ProgramError):
        raise located(exc, what(step)) from exc
    if isinstance(exc, DeviceError):
        if isinstance(exc, DeviceLost) and isinstance(step, Launch):  # raised inside a kernel: poison the place here
            unit = frame.contexts[step.choice.place].unit
            unit.lost = unit.lost or str(exc)
        raise _located(exc, step) from exc
    if isinstance(exc, FluidError):
        raise exc
    if isinstance(exc, MemoryError):
        raise OutOfMemoryError(f"{what(step)}: out of memory: {exc}") from exc
    where = step.choice.place if isinstance(step, Launch) else frame.place
    raise DeviceError(f"{what(step)} failed on {where}: {type(exc).__name__}: {exc}{_kernel_text(step, exc)}") from exc


def _kernel_text(step: Any, error: Exception | None) -> str:
    """For the author of a kernel: where it is, and what a KeyError could have named."""
    if not isinstance(step, Launch) or step.choice.kernel is None:
        return ""
    text = f"\n  In {step.choice.kernel.whose}"
    if isinstance(error, KeyError):
        call = step.call
        text += f"; slots here: {', '.join(call.index)}; attributes: {', '.join(call.attrs) or 'none'}"
    return text


def before_state(frame: Frame, guarded: Context | None) -> None:
    """Raise a late error before state is written; a kernel that looks at its context's status word itself may go on."""
    suspects = [context for context in frame.contexts.values() if context.suspect and context is not guarded]
    if suspects:
        raise_late(frame, suspects)


def what(step: Any) -> str:
    """A step as errors name it: the operator, with the user's line, or what moves."""
    if isinstance(step, (Launch, Control)):
        return str(step.op)
    return f"moving {step.name} from {step.source} to {step.target}" if isinstance(step, Move) else "the run"


def _located(error: DeviceError, step: Any) -> DeviceError:
    """The error of a device, with the step and the kernel in which it came up."""
    kernel = _kernel_text(step, None)
    again = type(error)(f"{what(step)}: {error}{'' if kernel in str(error) else kernel}")
    again.__dict__.update(error.__dict__)
    return again


def _launch(step: Launch, frame: Frame, values: dict[str, Tensor], context: Context, watching: list[Observer]) -> None:
    call = step.call
    tensors: list[Tensor] = []
    for key, spec in zip(step.ins, step.in_specs, strict=True):
        if key is None:
            tensors.append(Tensor.of(spec, context.place))
        else:
            tensors.append(relaid(values[key], spec) if step.blind else values[key])
    made: list[Tensor] = []
    for out in step.outs:
        if out.shares >= 0:
            tensor = tensors[out.shares]
            if tensor.spec is not out.spec:
                tensor = relaid(tensor, out.spec)
            tensor.version += 1
        else:
            kept = recycle.take(context, out.spec)
            tensor = kept if kept is not None else Tensor.of(out.spec, context.place)
        made.append(tensor)
    if step.blind:
        see_as_plain(made, call)
    tensors += made
    if not step.skip:
        if step.writes_state:
            before_state(frame, context if step.guarded else None)
        run, space = step.runs.get(context) or prepare_step(step, context)
        random = NO_RANDOM if step.random is None else random_words(step.random, frame.scope)
        workspace = None
        if space is not None:
            workspace = recycle.take(context, space)
            if workspace is None:
                workspace = Tensor.of(space, context.place)
                workspace.allocate(context)
        io = IO(call, tensors, context, step.op_index, random, workspace)
        check = kernel_check() if watching else None
        if check is None:
            run_kernel(run, context, io, made)
        else:
            check.launch(step, context, tensors[: len(step.ins)], made, partial(run_kernel, run, context, io, made))
        if workspace is not None:
            recycle.give(context, workspace)
    for out, tensor in zip(step.outs, made, strict=True):
        if step.blind:
            tensor.spec, tensor._array = out.spec, None
        if tensor.allocation is None:
            if tensor.spec is None or (tensor.spec.size and not step.skip):
                raise DeviceError(f"the kernel wrote nothing to {out.key}{_kernel_text(step, None)}")
            tensor.allocate(context)  # of no bytes, but a reader may ask for its array
        values[out.key] = tensor
        if out.state and out.shares < 0:
            variable = frame.scope.find_var(out.key) or frame.scope.var(out.key)
            variable.tensor.share_data_with(tensor)
            values[out.key] = variable.tensor
    if watching:
        seen = observation(step, tensors)
        for observer in watching:
            observer(seen)


def relaid(tensor: Tensor, spec: Spec) -> Tensor:
    """The same bytes under the metadata that a kernel computes with."""
    shared = Tensor()
    shared.share_data_with(tensor)
    shared.spec, shared._array = spec, None
    return shared


def see_as_plain(made: list[Tensor], call: Call) -> None:
    """Give outputs the metadata that a kernel computes with, while it runs."""
    specs = [spec for group in call.outs.values() for spec in group]
    for tensor, spec in zip(made, specs, strict=True):
        tensor.spec, tensor._array = spec, None


def prepare_step(step: Launch, context: Context) -> tuple[Run, Spec | None]:
    run = prepared(step.choice, step.call, context)
    nbytes = getattr(run, "workspace", 0)
    for other in [known for known in list(step.runs) if known.closed]:
        step.runs.pop(other, None)
    found = step.runs[context] = run, Spec.of((nbytes,), "uint8") if nbytes else None
    return found


def prepared(choice: Choice, call: Call, context: Context) -> Run:
    """The prepared kernel of a call: one bounded cache a context, shared by all that run kernels."""

    def make() -> Run:
        with context.guarded(f"preparing {call.op.type}"):
            run = choice.prepare(call, context)
        if not callable(run):
            raise DeviceError(f"{choice.whose(call)} prepared {run!r}; expected run(context, io)")
        return run

    found: Run = context.prepared.get((call, choice.kernel, choice.capability), make)
    return found


def run_kernel(run: Run, context: Context, io: IO, made: Sequence[Tensor]) -> None:
    """Run a prepared kernel, and take the arrays that it returns."""
    result = run(context, io)
    if result is not None:
        take_arrays(result, made, context)


def take_arrays(result: Any, made: Sequence[Tensor], context: Context) -> None:
    """Take arrays that a kernel returned: adopt them, or copy where memory is already bound."""
    arrays = result if isinstance(result, (tuple, list)) else (result,)
    if len(arrays) != len(made):
        raise DeviceError(f"the kernel returned {len(arrays)} arrays for {len(made)} outputs")
    alone = _FRESH[isinstance(result, (tuple, list))]
    fresh = [count <= alone for count in _references(result)]  # one that a kernel keeps (a table) is copied
    for tensor, array, mine in zip(made, arrays, fresh, strict=True):
        spec = tensor.spec
        if array is None or spec is None:
            continue
        if not spec.known and spec.fits(Spec.of(array.shape, spec.dtype)):  # a dynamic output
            spec = tensor.spec = spec.with_(dims=tuple(array.shape))
        if tuple(array.shape) != spec.dims:
            raise DeviceError(f"the kernel returned dims {list(array.shape)}, inference found {list(spec.dims)}")
        if str(array.dtype).rpartition(".")[2] != spec.dtype:
            raise DeviceError(f"the kernel returned {array.dtype}, inference found {spec.dtype}")
        if tensor.allocation is None:
            adopted = transfer.adopt(array, spec, context) if mine else None
            if adopted is not None:
                tensor.allocation = adopted.allocation
                continue
            tensor.allocate(context)
        tensor.array()[...] = array


def _references(result: Any) -> list[int]:
    arrays = result if isinstance(result, (tuple, list)) else (result,)
    return [getrefcount(array) for array in arrays]


def _fresh_counts() -> tuple[int, int]:
    """References to an array that a kernel has just made, alone and in a tuple, as ``take_arrays`` sees them."""

    def take(result: Any) -> int:
        arrays = result if isinstance(result, (tuple, list)) else (result,)
        count = _references(result)[0]
        del arrays
        return count

    one = object()
    several = (object(),)
    return take(one), take(several)


_FRESH = _fresh_counts()


def random_words(random: tuple[int, int], scope: Scope) -> tuple[int, int, int, int]:
    """Philox words of a run: key (2), run number, stream."""
    seed, _ = random
    key, stream = random_key(random)
    if stream < 0:
        return key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF, 0, 0
    number = scope.next_run(stream, seed)
    return key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF, number & 0xFFFFFFFF, stream


def random_key(random: tuple[int, int]) -> tuple[int, int]:
    """Key and stream of an operator's random numbers; a negative stream: the same numbers at each run."""
    seed, stream = random
    return (seed if stream < 0 else seed or _process_seed), stream


def run_move(step: Move, frame: Frame) -> None:
    source = frame.values[step.from_key]
    context = frame.contexts[step.target]
    if not step.into_state:
        frame.values[step.to_key] = transfer.transfer(source, context)
        return
    if step.why == "state":
        source.move_to(step.target)
        return
    before_state(frame, None)
    variable = frame.scope.find_var(step.to_key) or frame.scope.var(step.to_key)
    held = variable.tensor
    if held.allocation is not None and held.contiguous and held.place == step.target and held.spec == source.spec:
        transfer.transfer(source, context, into=held)
        held.version += 1
    else:
        held.share_data_with(transfer.transfer(source, context))
    frame.values[step.to_key] = held


def run_control(step: Control, frame: Frame) -> None:
    assert step.op.definition.run is not None
    outs = [out for group in step.outs.values() for out in group]
    if any(out.state for out in outs):
        before_state(frame, None)
    frame.step = step
    step.op.definition.run(frame, step.op)
    for out in outs:
        if out.key not in frame.values:
            raise DeviceError(f"{step.op} wrote nothing to {out.key}")


def read_fetches(frame: Frame) -> list[tuple[Any, Spec]]:
    """Read what was fetched and the status words, behind one wait a context."""
    fetched: list[tuple[np.ndarray[Any, Any], Spec]] = []
    touched: dict[Place, Context] = {}
    for name, key, place, spec in frame.plan.fetches:
        context = frame.contexts[place]
        tensor = frame.values.get(key)
        if tensor is None:
            raise ProgramError(f"variable {name!r} was fetched, but the run made no value of it")
        fetched.append((transfer.begin_read(tensor, context), tensor.spec or spec))
        touched[place] = context
    raise_late(frame, [context for context in frame.contexts.values() if context.suspect], wait_for=touched)
    return fetched


def raise_late(frame: Frame, suspects: list[Context], wait_for: Mapping[Place, Context] | None = None) -> None:
    """Wait, and raise the first late error that a status word holds."""
    suspects = [context for context in suspects if not context.nothing_late()]
    words = [(context, context.begin_status()) for context in suspects]
    waiting = dict(wait_for or {})
    waiting.update({context.place: context for context in suspects})
    for context in waiting.values():
        context.wait()
    for context, word in words:
        late = context.end_status(word)
        if late is not None:
            index, value, bound = late
            op = frame.plan.lines[index].op if index < len(frame.plan.lines) else None
            raise LateError(
                f"{op or 'an operator'}: index {value} is out of range; expected 0 to {bound - 1}"
                f"\n  Found on {context.place}; operators after it wrote no state"
            )
