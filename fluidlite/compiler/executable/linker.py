"""Bind: the steps of a plan become callables without arguments, on tensors at fixed addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fluidlite.base.errors import DeviceError
from fluidlite.compiler.executable.command_buffer import Action, merged, recorded
from fluidlite.compiler.executable.packed_state import PackedState
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.interpreter import run_control, run_move
from fluidlite.compiler.kernel_checks import CheckKernels, kernel_check
from fluidlite.compiler.kernel_runs import NO_RANDOM, random_words, relaid, run_kernel, take_arrays
from fluidlite.compiler.memory.live_ranges import LiveRange
from fluidlite.compiler.memory.storage import DeviceBufferStorage
from fluidlite.compiler.planning.plan import Control, Launch, Move, Output, Step
from fluidlite.compiler.run_errors import before_state, fail
from fluidlite.platform.context import Context
from fluidlite.platform.device_memory import Span
from fluidlite.program.kernel_io import IO
from fluidlite.program.prepared import Prepared, Run
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.compiler.executable.linked_plan import LinkedPlan

MakeTensor = Callable[[DeviceBufferStorage, Spec, int], Tensor]


class ErrorGuard:
    """An action: raises a deferred error before state is written, as the interpreter does, where there may be one."""

    def __init__(self, frame: Frame, contexts: Iterable[Context], guarded: Context | None) -> None:
        self._frame, self._contexts, self._guarded = frame, tuple(contexts), guarded

    def __call__(self) -> None:
        for context in self._contexts:
            if context.suspect:
                before_state(self._frame, self._guarded)


class StateStore:
    """An action: copies a result into state."""

    def __init__(self, source: Tensor, held: Tensor, context: Context) -> None:
        self._source, self._held, self._context = source, held, context

    def __call__(self) -> None:
        transfer.transfer(self._source, self._context, self._held)


class Linker:
    """Binds one plan to memory; of one that is timed, launches of several operators do not become one call.

    ``actions``: what a call does, in order.
    ``owners``: the step of each.
    ``fixed``: values at fixed addresses.
    """

    def __init__(self, linked: LinkedPlan) -> None:
        plan, frame, state = linked.plan, linked.frame, linked.binding.tensors
        self._check = kernel_check()
        self._suspects = set(frame.contexts if linked.earlier else ())
        """Places where a kernel before may have recorded a deferred error: in a stage behind others, all of them."""
        self.linked = linked
        self.live_ranges = linked.live_ranges
        self.frame = frame
        self.state = state
        self.actions: list[Action] = []
        self.owners: list[Step] = []
        self.fixed: dict[str, Tensor] = {**linked.earlier, **state}
        self._packed = PackedState({name: tensor for name, tensor in state.items() if name not in plan.own_writes})
        for name in linked.fed:
            key = plan.feed_keys[name]
            life = self.live_ranges.of[key]
            if not life.loose:
                self.fixed[key] = self._tensor(life, plan.feeds[name])
        for index, step in enumerate(plan.steps):
            before = len(self.actions)
            try:
                if isinstance(step, Launch):
                    self._launch(index, step)
                    if step.choice.indexes(step.call):
                        self._suspects.add(step.choice.place)
                elif isinstance(step, Move):
                    self._move(step)
                else:
                    self._control(step)
                    self._suspects.update(frame.contexts)  # what it runs may index
                    self.actions.append(self._packed)  # and may write
            except Exception as exc:
                fail(exc, step, frame)
            self.owners += [step] * (len(self.actions) - before)
        if self._packed.empty:
            kept = [each for each in zip(self.actions, self.owners, strict=True) if each[0] is not self._packed]
            self.actions, self.owners = [action for action, _ in kept], [owner for _, owner in kept]
        else:
            self.actions.insert(0, self._packed)
            self.owners.insert(0, plan.steps[0])
        if not linked.timed:
            self.actions, self.owners = merged(self.actions, self.owners)

    def _tensor(self, life: LiveRange, spec: Spec) -> Tensor:
        linked = self.linked
        made = linked.make_tensor(linked.buffers[life.place], spec, linked.memory.at[life])
        if not isinstance(made, Tensor):
            raise DeviceError(f"device_tensor gave {made!r}; expected a DeviceTensor")
        return made

    def _loose(self, key: str | None) -> bool:
        life = self.live_ranges.of.get(key) if key is not None else None
        return life is not None and life.loose

    # One kind of step each

    def _move(self, step: Move) -> None:
        frame = self.frame
        if step.into_state or self._loose(step.to_key):
            self.actions.append(lambda: run_move(step, frame))
            return
        life = self.live_ranges.of[step.to_key]
        target = self.fixed[step.to_key] = self._tensor(life, step.spec)
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
        targets: list[Tensor | None] = [self._target(index, j, step, out) for j, out in enumerate(step.outs)]
        for out, target in zip(step.outs, targets, strict=True):
            if target is not None and not out.state:
                self.fixed[out.key] = target
        if step.writes_state:
            self._guard(step, context)
        prepared = self.linked.prepared.get(index)
        run = prepared.run if prepared is not None else None
        if index in self.live_ranges.views:
            return
        space = self.live_ranges.workspaces.get(index)
        workspace = self._tensor(space, Spec.of((space.nbytes,), "uint8")) if space is not None else None
        packed = self._packed.of(step, prepared, context) if prepared is not None and prepared.packed else None
        if None in targets or any(map(self._loose, step.ins)):
            self.actions.append(self._open(step, run, context, targets, workspace, packed))
        elif prepared is not None:
            made = [target for target in targets if target is not None]
            self.actions.append(self._bind(step, prepared, context, made, workspace, packed))
        for j, out in enumerate(step.outs):
            if (index, j) in self.live_ranges.copied:
                made_beside = targets[j]
                assert made_beside is not None
                self.actions.append(StateStore(made_beside, self.state[out.key], context))

    def _target(self, index: int, position: int, step: Launch, out: Output) -> Tensor | None:
        """The tensor of an output; None if its memory is another at each call."""
        life = self.live_ranges.copied.get((index, position))
        if life is not None:
            return self._tensor(life, out.spec)
        if out.state:
            held = self.state[out.key]
            return held if held.spec is out.spec or out.shares < 0 else relaid(held, out.spec)
        life = self.live_ranges.of[out.key]
        if life.loose:
            return None
        if life.kind == "earlier":  # written in place: its memory is that of an earlier stage
            held = self.fixed[life.keys[0]]
            return held if held.spec is out.spec else relaid(held, out.spec)
        return self._tensor(life, out.spec)

    def _bind(
        self,
        step: Launch,
        prepared: Prepared,
        context: Context,
        targets: list[Tensor],
        workspace: Tensor | None,
        packed: Mapping[str, Span] | None,
    ) -> Action:
        run, tensors = prepared.run, []
        for key, spec in zip(step.ins, step.in_specs, strict=True):
            if key is None:
                tensors.append(Tensor.of(spec, context.place))
            else:
                value = self.fixed[key]
                tensors.append(relaid(value, spec) if step.blind else value)
        made = targets
        if step.blind:
            specs = [spec for group in step.call.outs.values() for spec in group]
            made = [relaid(target, spec) for target, spec in zip(targets, specs, strict=True)]
        io = IO(step.call, [*tensors, *made], context, step.op_index, NO_RANDOM, workspace, packed)
        if step.random is not None:
            random, frame = step.random, self.frame

            drawn = run if self._check is None else _checked(step, run, self._check)

            def draw() -> None:
                io.random = random_words(random, frame.scope)
                result = drawn(context, io)
                if result is not None:
                    take_arrays(result, made, context)

            return draw
        action: Action | None = recorded(step, prepared, context, io, context.place in self._suspects)
        if action is None and prepared.bind is not None:
            action = prepared.bind(context, io)
        if action is None:
            action = partial(run_kernel, run, context, io, made)
        if self._check is None:
            return action
        return partial(self._check.launch, step, context, tensors, made, workspace, action)

    def _open(
        self,
        step: Launch,
        run: Run | None,
        context: Context,
        targets: Sequence[Tensor | None],
        workspace: Tensor | None,
        packed: Mapping[str, Span] | None,
    ) -> Action:
        """A launch some of whose tensors are others at each call; what is the caller's is let go of after it."""
        frame, count, blind, random = self.frame, len(step.ins), step.blind, step.random
        made = [spec for group in step.call.outs.values() for spec in group] if blind else [o.spec for o in step.outs]
        specs = [*step.in_specs, *made]
        known = [self.fixed.get(key) if key is not None else None for key in step.ins] + [*targets]
        absent = {i: Tensor.of(specs[i], context.place) for i, x in enumerate(known) if x is None}
        fixed = [absent[i] if x is None else relaid(x, specs[i]) if blind else x for i, x in enumerate(known)]
        given = [(i, key) for i, key in enumerate(step.ins) if key is not None and known[i] is None]
        fresh = [(i, out) for i, out in enumerate(step.outs, count) if known[i] is None]
        io = IO(step.call, [*fixed], context, step.op_index, NO_RANDOM, workspace, packed)
        tensors = io.tensors
        if run is not None and self._check is not None:
            run = _checked(step, run, self._check)

        def action() -> None:
            values = frame.values
            for i, key in given:
                tensors[i] = relaid(values[key], specs[i]) if blind else values[key]
            for i, out in fresh:
                if out.shares < 0:
                    tensors[i] = Tensor.of(specs[i], context.place)
                else:
                    shared = tensors[out.shares]
                    tensors[i] = shared if shared.spec is specs[i] and not blind else relaid(shared, specs[i])
            try:
                if run is not None:
                    if random is not None:
                        io.random = random_words(random, frame.scope)
                    result = run(context, io)
                    if result is not None:
                        take_arrays(result, tensors[count:], context)
                for i, out in fresh:
                    tensor = values[out.key] = tensors[i]
                    if blind:
                        tensor.spec, tensor._array = out.spec, None
                    if tensor.allocation is None:
                        if tensor.spec is None or (tensor.spec.size and run is not None):
                            raise DeviceError(f"the kernel wrote nothing to {out.key}")
                        tensor.allocate(context)
            finally:
                for i, none in absent.items():
                    tensors[i] = none

        return action

    def _guard(self, step: Launch, context: Context) -> None:
        """Look for a deferred error before state is written."""
        guarded = context if step.guarded else None
        others = [self.frame.contexts[place] for place in self._suspects if self.frame.contexts[place] is not guarded]
        if others:
            self.actions.append(ErrorGuard(self.frame, others, guarded))
            self._suspects -= {other.place for other in others}  # nothing is left there, until somebody indexes again


def _checked(step: Launch, run: Run, check: CheckKernels) -> Run:
    """A prepared kernel that is checked whenever it runs."""
    inputs = len(step.ins)

    def checked(context: Context, io: IO) -> None:
        made = io.tensors[inputs:]
        check.launch(step, context, io.tensors[:inputs], made, io.workspace, lambda: run_kernel(run, context, io, made))

    return checked
