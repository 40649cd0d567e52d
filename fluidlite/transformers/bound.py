"""Bound: a plan with its memory, ready to be called. A call dispatches, infers and allocates nothing but results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from weakref import ref

import numpy as np

from fluidlite.base.errors import OutOfMemoryError, ProgramError
from fluidlite.framework import transfer
from fluidlite.framework.interpreter import Frame, fail, go_on, prepare_step, raise_late, run_steps, what
from fluidlite.framework.kernels import Run
from fluidlite.framework.plan import Launch, Move, Plan, Step
from fluidlite.framework.program import Program
from fluidlite.framework.scope import Scope
from fluidlite.framework.spec import Spec
from fluidlite.framework.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.device import ContextBase
from fluidlite.platform.place import Place
from fluidlite.platform.pool import get_context
from fluidlite.transformers.bind import Action, Binder, MakeTensor
from fluidlite.transformers.held_state import HeldState
from fluidlite.transformers.lifespans import Lifespans
from fluidlite.transformers.memory_plan import MemoryPlan
from fluidlite.transformers.storage import DeviceBufferStorage, DeviceTensor

_NO_SCOPE = Scope()

MOST_NEXT = 8
"""Bound continuations of a stage that are kept."""

Fetched = list[tuple[Any, Spec]]


class Storages(Protocol):
    """Where a bound program asks for its memory.

    Attributes
    ----------
    copy : bool
        Whether results are copies.
    """

    copy: bool

    def of(self, context: Context, stage: int = 0) -> DeviceBufferStorage:
        """The storage of a context, for a stage of programs."""
        ...


class Bound:
    """A plan that is bound to memory, that of the state in a scope included, and to the contexts of this thread.

    Parameters
    ----------
    plan : Plan
    program : Program
    feeds : mapping of name to Tensor
        Of the call that it is bound for; later ones have the same specs and places.
    storages : Storages
    make_tensor : callable
        ``make_tensor(storage, spec, offset)``.
    before : Bound or None
        The stage that it goes on from.

    Attributes
    ----------
    memory : MemoryPlan
    attached : int
        How often its steps were bound: once, and again whenever memory of state or of an arena became another.
    begun : DeviceBufferStorage
        The storage that is busy while it runs.
    way : weak reference to Direct, or None
        The shortest way through it, if one was made.
    tried : int
        How often it had been bound when a way was looked for last.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        feeds: Mapping[str, Tensor],
        storages: Storages,
        make_tensor: MakeTensor = DeviceTensor.at,
        before: Bound | None = None,
    ) -> None:
        self.plan = plan
        self.make_tensor = make_tensor
        self.storages = storages
        self.before = before
        self.stage: int = before.stage + 1 if before is not None else 0
        self.frame: Frame = before.frame if before is not None else Frame(plan, program, _NO_SCOPE, {})
        if before is None:
            self.frame.contexts = {place: get_context(place) for place in plan.places}
        self.contexts: list[Context] = list(self.frame.contexts.values())
        given = before.given() if before is not None else {}
        self.begun = storages.of(self.frame.contexts[plan.place])
        self.way: ref[Any] | None = None
        self.tried = 0
        self._prepared: dict[int, Run] = {}
        self._feeds = {name: tensor.place for name, tensor in feeds.items() if tensor.place is not None}
        with held(self.contexts):
            self.lifespans = Lifespans(plan, self._prepare(), self._feeds, given, storages.copy)
        self.memory = MemoryPlan(plan, self.lifespans)
        self._storages = {place: storages.of(self.frame.contexts[place], self.stage) for place in self.memory.arenas}
        self._written = written_state(plan)
        self._state = HeldState(sorted(self.lifespans.state), self._written)
        self._next: OrderedDict[Plan, Bound | None] = OrderedDict()
        self._stamps: list[tuple[DeviceBufferStorage, int]] = []
        self._given: Mapping[str, Tensor] | None = None
        self.attached = 0
        self.actions: list[Action] = []
        self.owners: list[Step] = []
        self.fixed: dict[str, Tensor] = {}
        self._copies: list[tuple[str, Any]] = []
        self._loose: list[str] = []

    def _prepare(self) -> dict[int, int]:
        """Prepare the kernels; return the bytes of workspace by step."""
        workspaces: dict[int, int] = {}
        for index, step in enumerate(self.plan.steps):
            if isinstance(step, Launch) and not step.skip:
                try:
                    self._prepared[index], space = prepare_step(step, self.frame.contexts[step.choice.place])
                except Exception as exc:
                    fail(exc, step, self.frame)
                workspaces[index] = space.nbytes if space is not None else 0
        return workspaces

    def run_of(self, index: int) -> Run | None:
        """The prepared kernel of a step, if it has one."""
        return self._prepared.get(index)

    @property
    def following(self) -> Bound | None:
        """The stage that ran behind it last, if that was bound."""
        return next(reversed(self._next.values()), None)

    def given(self) -> dict[str, bool]:
        """What a later stage finds: whether the memory of each value is another at each call."""
        return {key: life.loose for key, life in self.lifespans.of.items()}

    # Whether it can run, and binding again

    def ready(self, scope: Scope) -> bool:
        """See that its memory is where it was, or bind again; False if the interpreter has to run it."""
        if self.attached and self.settled(scope):
            return True
        if not self._state.look_up(scope):
            return False
        with held(self.contexts):
            self._attach()
        return True

    @property
    def varies(self) -> bool:
        """Whether memory of some value is another at each call."""
        return any(life.loose for life in self.lifespans.of.values())

    @property
    def foreign(self) -> bool:
        """Whether some of its state was written by another context, and has to be waited for."""
        return bool(self._foreign)

    @property
    def busy(self) -> bool:
        """Whether a run is under way: an operator of it calls back."""
        return self.begun.busy

    def settled(self, scope: Scope) -> bool:
        for storage, generation in self._stamps:
            if storage.generation != generation:
                return False
        if self.before is not None and self._given is not self.before.fixed:
            return False
        return self._state.settled(scope)

    def _attach(self) -> None:
        self.block_way()
        for place, storage in self._storages.items():
            try:
                storage.fit(self.memory.arenas[place])
            except OutOfMemoryError as exc:
                step = self.plan.steps[min(self.memory.fullest(place), len(self.plan.steps) - 1)]
                raise OutOfMemoryError(f"temporaries of the program, most of them at {what(step)}: {exc}") from exc
            storage.users.add(self)
        self._stamps = [(storage, storage.generation) for storage in self._storages.values()]
        self._given = self.before.fixed if self.before is not None else {}
        binder = Binder(
            self.plan, self.lifespans, self.memory, self._prepared, self.frame, self._storages, self._state.tensors,
            self._feeds, self._given, self.make_tensor,
        )  # fmt: skip
        self.actions, self.owners, self.fixed = binder.actions, binder.owners, binder.fixed
        self._changed = [self._state.tensors[name] for name in self._written]
        self._foreign = [tensor for tensor in self._state.tensors.values() if self._is_foreign(tensor)]
        self._copies = [(name, self.fixed[name].array()) for name in self._feeds if name in self.fixed]
        self._loose = [name for name in self._feeds if name not in self.fixed]
        self._same = self.plan.pending is None and not self.varies
        if self.before is None:
            self.frame.values = dict(self.fixed)
        self.attached += 1

    def detach(self) -> None:
        """Let go of the memory; the next call binds again."""
        self.block_way()
        self.actions, self.owners, self.fixed = [], [], {}
        self._copies = []
        if self.before is None:
            self.frame.values = {}

    def block_way(self) -> None:
        """Close the way through it, if there is one."""
        way = self.way() if self.way is not None else None
        if way is not None:
            way.close()
        self.way = None

    @property
    def later(self) -> Bound | None:
        """The stage that followed at the last call, if it is bound."""
        return next(reversed(self._next.values()), None)

    @property
    def loose_feeds(self) -> Sequence[str]:
        """Feeds that are read where the caller has them."""
        return self._loose

    @property
    def state(self) -> list[tuple[str, Tensor, bool]]:
        """The tensors of the scope that it reads or writes, by name, and whether it writes them."""
        return [(name, tensor, name in self._written) for name, tensor in self._state.tensors.items()]

    def _is_foreign(self, tensor: Tensor) -> bool:
        context = self.frame.contexts.get(tensor.place) if tensor.place is not None else None
        return tensor.allocation is not None and tensor.allocation.context is not context

    # A call

    def run(self, feeds: Mapping[str, Tensor], scope: Scope) -> tuple[Fetched, Plan]:
        """Run it, after :meth:`ready` said yes; returns what ``run_plan`` does."""
        for tensor in (*self._foreign, *feeds.values()):  # before a lock is held
            if self._is_foreign(tensor):
                assert tensor.place is not None
                context = self.frame.contexts.get(tensor.place) or get_context(tensor.place)
                transfer.ready(tensor, context)
                context.ordered.add(tensor.allocation)
        if len(self.contexts) > 1:
            with held(self.contexts):
                return self._call(feeds, scope)
        (context,) = self.contexts  # spelled out: a stack costs as much as ten small operators
        with context.lock, context.raw.activate():
            return self._call(feeds, scope)

    def _call(self, feeds: Mapping[str, Tensor], scope: Scope) -> tuple[Fetched, Plan]:
        frame = self.frame
        ran: list[Bound] = []
        self.begin(scope)
        try:
            for name, array in self._copies:
                array[...] = feeds[name].array()
            for name in self._loose:
                frame.values[name] = feeds[name]
            last = self._stages(ran)
            return self._fetch(last), frame.plan
        except BaseException:
            for context in self.contexts:
                context.forget_late()
            raise
        finally:
            self.end(ran)

    def begin(self, scope: Scope) -> None:
        """Begin a run."""
        self.frame.scope = scope
        self.begun.busy = True

    def end(self, ran: Sequence[Bound]) -> None:
        """End a run of some stages."""
        frame = self.frame
        self.begun.busy = False
        frame.scope = _NO_SCOPE  # nothing that is bound keeps a scope alive
        for stage in ran:
            for tensor in stage._changed:
                tensor.version += 1
        if not self._same:
            frame.plan, frame.values = self.plan, dict(self.fixed)
        for context in self.contexts:
            context.ordered.clear()

    def _stages(self, ran: list[Bound]) -> Bound | None:
        """Run this stage and those behind it; return the last one, or None if the interpreter ran it."""
        frame, stage = self.frame, self
        while True:
            ran.append(stage)
            stage.act()
            if frame.plan.pending is None:
                return stage
            go_on(frame, frame.plan.pending)
            found = stage._after(frame.plan)
            if found is None:
                break
            stage = found
            frame.values.update(stage.fixed)
        run_steps(frame, [])
        while frame.plan.pending is not None:
            go_on(frame, frame.plan.pending)
            run_steps(frame, [])
        return None

    def act(self) -> None:
        action: Action | None = None
        try:
            for action in self.actions:
                action()
        except Exception as exc:
            fail(exc, self.owners[self.actions.index(action)], self.frame)  # type: ignore[arg-type]

    def _after(self, plan: Plan) -> Bound | None:
        """The bound stage of a plan that follows; None at its first run, for it may be the only one."""
        if plan not in self._next:
            self._next[plan] = None
            if len(self._next) > MOST_NEXT:
                self._next.popitem(last=False)
            return None
        self._next.move_to_end(plan)
        found = self._next[plan]
        if found is None:
            if refusal(plan, self.frame.scope) is not None:
                return None
            found = self._next[plan] = Bound(plan, self.frame.program, {}, self.storages, self.make_tensor, before=self)
        return found if found.ready(self.frame.scope) else None

    def _fetch(self, last: Bound | None) -> Fetched:
        """Copy out what was asked for, or hand over memory that only the result has; see the status words."""
        frame, fetched = self.frame, []
        touched: dict[Place, Context] = {}
        for name, key, place, spec in frame.plan.fetches:
            context = frame.contexts[place]
            tensor = frame.values.get(key)
            if tensor is None:
                raise ProgramError(f"variable {name!r} was fetched, but the run made no value of it")
            if context.unit.info.host and context.xp is not None and context.array.eager and tensor.contiguous:
                if not self.storages.copy and last is not None and last.fixed.get(key) is tensor:
                    view = np.asarray(tensor.array()).view()
                    view.flags.writeable = False
                    fetched.append((view, tensor.spec or spec))
                    continue
                life = last.lifespans.of.get(key) if last is not None else None
                handed_over = life is not None and life.handed_over
                array = tensor.numpy() if handed_over else np.array(tensor.array())
                if array.nbytes:
                    context.counts.copy_out += 1
                    context.counts.bytes_out += array.nbytes
                fetched.append((array, tensor.spec or spec))
                continue
            fetched.append((transfer.begin_read(tensor, context), tensor.spec or spec))
            touched[place] = context
        suspects = [context for context in self.contexts if context.suspect]
        if suspects or touched:
            raise_late(frame, suspects, wait_for=touched)
        return fetched


@contextmanager
def held(contexts: Sequence[Context]) -> Iterator[None]:
    """Hold queues, as a run does."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context.lock)
            if type(context.raw).activate is not ContextBase.activate:
                stack.enter_context(context.raw.activate())
        yield


def written_state(plan: Plan) -> dict[str, tuple[Spec, Place]]:
    """State that a plan writes, with what it is afterwards."""
    found: dict[str, tuple[Spec, Place]] = {}
    for step in plan.steps:
        if isinstance(step, Launch):
            found.update({out.key: (out.spec, step.choice.place) for out in step.outs if out.state})
        elif isinstance(step, Move) and step.into_state:
            found[step.to_key] = (step.spec, step.target)
    return found


def refusal(plan: Plan, scope: Scope) -> str | None:
    """Why a plan cannot be bound at all, or None. What makes state, as startup programs do, runs once in any case."""
    for name in written_state(plan):
        variable = scope.find_var(name)
        if variable is None or variable.tensor.allocation is None:
            return f"it makes state {name!r}"
    for step in plan.steps:
        if isinstance(step, Move):
            if step.why == "state":
                return f"state {step.name!r} moves to its place"
        elif not isinstance(step, Launch) and any(out.state for outs in step.outs.values() for out in outs):
            return f"{step.op} makes state"
    return None
