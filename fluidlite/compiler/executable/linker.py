"""The linker: binds each step of a plan to tensors at static addresses, as a callable without arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from fluidlite.base.errors import DeviceError
from fluidlite.compiler.executable.command_buffer import Action, merge_launches, record_step
from fluidlite.compiler.executable.packed_state import PackedState
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.interpreter import run_control, run_move
from fluidlite.compiler.kernel_checks import CheckKernels, kernel_check
from fluidlite.compiler.kernel_runs import NO_RANDOM, random_words, run_kernel, with_spec
from fluidlite.compiler.memory.live_ranges import LiveRange
from fluidlite.compiler.memory.storage import DeviceBufferStorage
from fluidlite.compiler.planning.plan import Control, Launch, Move, Output, Step
from fluidlite.compiler.run_errors import fail, raise_before_state_write
from fluidlite.platform.context import Context
from fluidlite.program.kernel_io import IO
from fluidlite.program.prepared import Prepared, Run
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.compiler.executable.linked_plan import LinkedPlan

MakeTensor = Callable[[DeviceBufferStorage, Spec, int], Tensor]


class ErrorGuard:
    """An action that raises a deferred error before state is written, as the interpreter does."""

    def __init__(self, frame: Frame, contexts: Iterable[Context], exempt: Context | None) -> None:
        self._frame, self._contexts, self._guarded = frame, tuple(contexts), exempt

    def __call__(self) -> None:
        for context in self._contexts:
            if context.may_have_error:
                raise_before_state_write(self._frame, self._guarded)


class StateStore:
    """An action that copies a result into a state variable."""

    def __init__(self, source: Tensor, target: Tensor, context: Context) -> None:
        self._source, self._target, self._context = source, target, context

    def __call__(self) -> None:
        transfer.transfer(self._source, self._context, self._target)


class Linker:
    """Binds one plan to memory. Consecutive launches become one call, unless the plan is linked for a timer.

    ``actions``: the callables of one run, in order.
    ``owners``: the step of each action.
    ``fixed``: the tensors at static addresses, by key.
    """

    def __init__(self, linked: LinkedPlan) -> None:
        plan, frame, state = linked.plan, linked.frame, linked.binding.tensors
        self._check = kernel_check()
        self._fallible = set(frame.contexts if linked.earlier else ())
        """Places where an earlier kernel may have recorded a deferred error; all places in a later stage."""
        self.linked = linked
        self.live_ranges = linked.live_ranges
        self.frame = frame
        self.state = state
        self.actions: list[Action] = []
        self.owners: list[Step] = []
        self.fixed: dict[str, Tensor] = {**linked.earlier, **state}
        self._packed = PackedState({name: tensor for name, tensor in state.items() if name not in plan.state_writes})
        for name in linked.fed:
            key = plan.feed_keys[name]
            live_range = self.live_ranges.of[key]
            if not live_range.is_dynamic:
                self.fixed[key] = self._tensor(live_range, plan.feeds[name])
        for index, step in enumerate(plan.steps):
            before = len(self.actions)
            try:
                if isinstance(step, Launch):
                    self._launch(index, step)
                    if step.choice.indexes(step.call):
                        self._fallible.add(step.choice.place)
                elif isinstance(step, Move):
                    self._move(step)
                else:
                    self._control(step)
                    self._fallible.update(frame.contexts)  # its body may contain index operators
                    self.actions.append(self._packed)  # and may write packed state
            except Exception as exc:
                fail(exc, step, frame)
            self.owners += [step] * (len(self.actions) - before)
        if self._packed.empty:
            pairs = [each for each in zip(self.actions, self.owners, strict=True) if each[0] is not self._packed]
            self.actions, self.owners = [action for action, _ in pairs], [owner for _, owner in pairs]
        else:
            self.actions.insert(0, self._packed)
            self.owners.insert(0, plan.steps[0])
        if not linked.timed:
            self.actions, self.owners = merge_launches(self.actions, self.owners)

    def _tensor(self, live_range: LiveRange, spec: Spec) -> Tensor:
        linked = self.linked
        tensor = linked.make_tensor(linked.buffers[live_range.place], spec, linked.memory.at[live_range])
        if not isinstance(tensor, Tensor):
            raise DeviceError(f"device_tensor gave {tensor!r}; expected a DeviceTensor")
        return tensor

    def _is_dynamic(self, key: str | None) -> bool:
        live_range = self.live_ranges.of.get(key) if key is not None else None
        return live_range is not None and live_range.is_dynamic

    # One method for each kind of step

    def _move(self, step: Move) -> None:
        frame = self.frame
        if step.into_state or self._is_dynamic(step.to_key):
            self.actions.append(lambda: run_move(step, frame))
            return
        live_range = self.live_ranges.of[step.to_key]
        target = self.fixed[step.to_key] = self._tensor(live_range, step.spec)
        context, key, copy = frame.contexts[step.target], step.from_key, transfer.transfer
        if key in self.fixed:
            source = self.fixed[key]
            self.actions.append(lambda: copy(source, context, target))
        else:
            self.actions.append(lambda: copy(frame.values[key], context, target))

    def _control(self, step: Control) -> None:
        frame = self.frame
        self.actions.append(lambda: run_control(step, frame))

    def _launch(self, index: int, step: Launch) -> None:
        context = self.frame.contexts[step.choice.place]
        targets: list[Tensor | None] = [self._target(index, j, out) for j, out in enumerate(step.outs)]
        for out, target in zip(step.outs, targets, strict=True):
            if target is not None and not out.state:
                self.fixed[out.key] = target
        if step.writes_state:
            self._add_error_guard(step, context)
        if index in self.live_ranges.views:
            return
        prepared = self.linked.prepared.get(index)
        space = self.live_ranges.workspaces.get(index)
        workspace = self._tensor(space, Spec.of((space.nbytes,), "uint8")) if space is not None else None
        action = self._bind(step, prepared, context, targets, workspace)
        if action is not None:
            self.actions.append(action)
        for j, out in enumerate(step.outs):
            if (index, j) in self.live_ranges.copied:
                result = targets[j]
                assert result is not None
                self.actions.append(StateStore(result, self.state[out.key], context))

    def _target(self, index: int, position: int, out: Output) -> Tensor | None:
        """Return the tensor of an output; None if its address is dynamic."""
        live_range = self.live_ranges.copied.get((index, position))
        if live_range is not None:
            return self._tensor(live_range, out.spec)
        if out.state:
            tensor = self.state[out.key]
            return tensor if tensor.spec is out.spec or out.shares < 0 else with_spec(tensor, out.spec)
        live_range = self.live_ranges.of[out.key]
        if live_range.is_dynamic:
            return None
        if live_range.kind == "earlier":  # written in place, in memory of an earlier stage
            tensor = self.fixed[live_range.keys[0]]
            return tensor if tensor.spec is out.spec else with_spec(tensor, out.spec)
        return self._tensor(live_range, out.spec)

    def _bind(
        self,
        step: Launch,
        prepared: Prepared | None,
        context: Context,
        targets: Sequence[Tensor | None],
        workspace: Tensor | None,
    ) -> Action | None:
        """Bind a launch; None if nothing is launched. It holds no reference to tensors of the caller after a run."""
        frame, count, blind, random = self.frame, len(step.ins), step.layout_agnostic, step.random
        fixed: Mapping[Any, Tensor] = self.fixed  # of no key: none
        operands: list[Any] = [*map(fixed.get, step.ins), *targets]
        specs: list[Spec] = []
        empties: dict[int, Tensor] = {}
        dynamic_ins: list[tuple[int, str]] = []
        dynamic_outs: list[tuple[int, Output]] = []
        if blind or None in operands:
            outs = [*chain.from_iterable(step.call.outs.values())] if blind else [o.spec for o in step.outs]
            specs = [*step.in_specs, *outs]
            dynamic_ins = [(i, key) for i, key in enumerate(step.ins) if key is not None and operands[i] is None]
            dynamic_outs = [(i, out) for i, out in enumerate(step.outs, count) if operands[i] is None]
            empties = {i: Tensor.of(specs[i], context.place) for i, x in enumerate(operands) if x is None}
            operands = [
                empties[i] if x is None else with_spec(x, specs[i]) if blind else x for i, x in enumerate(operands)
            ]
        packed = self._packed.of(step, prepared, context) if prepared is not None and prepared.packed else None
        io = IO(step.call, operands, context, step.op_index, NO_RANDOM, workspace, packed)
        if random is None and not dynamic_ins and not dynamic_outs:
            return self._bind_static(step, prepared, context, io) if prepared is not None else None
        tensors = io.tensors
        run = prepared.run if prepared is not None else None
        if run is not None and self._check is not None:
            run = _with_kernel_check(step, run, self._check)

        def action() -> None:
            values = frame.values
            for i, key in dynamic_ins:
                tensors[i] = with_spec(values[key], specs[i]) if blind else values[key]
            for i, out in dynamic_outs:
                if out.shares < 0:
                    tensors[i] = Tensor.of(specs[i], context.place)
                else:
                    shared = tensors[out.shares]
                    tensors[i] = shared if shared.spec is specs[i] and not blind else with_spec(shared, specs[i])
            try:
                if run is not None:
                    if random is not None:
                        io.random = random_words(random, frame.scope)
                    run_kernel(run, context, io, tensors[count:])
                for i, out in dynamic_outs:
                    tensor = values[out.key] = tensors[i]
                    if blind:
                        tensor.spec, tensor._array = out.spec, None
                    if tensor.allocation is None:
                        if tensor.spec is None or (tensor.spec.size and run is not None):
                            raise DeviceError(f"the kernel wrote nothing to {out.key}")
                        tensor.allocate(context)
            finally:
                for i, empty in empties.items():
                    tensors[i] = empty

        return action

    def _bind_static(self, step: Launch, prepared: Prepared, context: Context, io: IO) -> Action:
        """Bind a launch on operands at static addresses: recorded, bound by the kernel, or a call of it."""
        operands, outputs = io.tensors[: len(step.ins)], io.tensors[len(step.ins) :]
        action: Action | None = record_step(step, prepared, context, io, context.place in self._fallible)
        if action is None and prepared.bind is not None:
            action = prepared.bind(context, io)
        if action is None:
            action = partial(run_kernel, prepared.run, context, io, outputs)
        if self._check is None:
            return action
        return partial(self._check.launch, step, context, operands, outputs, io.workspace, action)

    def _add_error_guard(self, step: Launch, context: Context) -> None:
        """Append the check for deferred errors that precedes a write of state."""
        exempt = context if step.guarded else None
        contexts = [self.frame.contexts[place] for place in self._fallible if self.frame.contexts[place] is not exempt]
        if contexts:
            self.actions.append(ErrorGuard(self.frame, contexts, exempt))
            self._fallible -= {other.place for other in contexts}  # until a later kernel may record one


def _with_kernel_check(step: Launch, run: Run, check: CheckKernels) -> Run:
    """Wrap a prepared kernel in the kernel check."""
    count = len(step.ins)

    def run_checked(context: Context, io: IO) -> None:
        outs = io.tensors[count:]
        check.launch(step, context, io.tensors[:count], outs, io.workspace, lambda: run_kernel(run, context, io, outs))

    return run_checked
