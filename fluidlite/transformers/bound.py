"""Bound: a plan with its memory, ready to be called. A call dispatches, infers and allocates nothing but results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from weakref import ref

import numpy as np

from fluidlite.base.epoch import epoch
from fluidlite.base.errors import OutOfMemoryError, ProgramError
from fluidlite.framework import transfer
from fluidlite.framework.interpreter import (
    Frame,
    fail,
    go_on,
    prepare_step,
    raise_late,
    run_steps,
    uses_of_state,
    what,
)
from fluidlite.framework.kernels import Run
from fluidlite.framework.observe import observers
from fluidlite.framework.plan import Launch, Move, Plan, Step
from fluidlite.framework.program import Program
from fluidlite.framework.scope import Scope
from fluidlite.framework.spec import Spec
from fluidlite.framework.tensor import Tensor
from fluidlite.memory import memory_of
from fluidlite.memory.arena import Arena, arenas_in_use, current_arena
from fluidlite.memory.bump import Piece
from fluidlite.memory.sharing import Use, turn
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


class Latest:
    """What ran last.

    Attributes
    ----------
    bound : Bound or None
    """

    __slots__ = ("bound",)

    def __init__(self) -> None:
        self.bound: Bound | None = None


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
    arenas : tuple
        What :func:`arenas_of` said of its places when it was bound: its memory is there.
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
        self.arenas = arenas_of(plan.places)
        self.begun = storages.of(self.frame.contexts[plan.place])
        self.way: ref[Any] | None = None
        self.tried = 0
        self._prepared: dict[int, Run] = {}
        self._feeds = {name: tensor.place for name, tensor in feeds.items() if tensor.place is not None}
        with held(self.contexts):
            self.lifespans = Lifespans(plan, self._prepare(), self._feeds, given, storages.copy)
        self.memory = MemoryPlan(plan, self.lifespans)
        self._storages = {place: storages.of(self.frame.contexts[place], self.stage) for place in self.memory.arenas}
        self._written = plan.written
        self._state = HeldState(sorted(self.lifespans.state), self._written, plan.given)
        self._next: OrderedDict[Plan, Bound | None] = OrderedDict()
        self._stamps: list[tuple[DeviceBufferStorage, int]] = []
        self._given: Mapping[str, Tensor] | None = None
        self.attached = 0
        self._bound = False
        self._turn: object = None
        """The epoch in which it was its turn to use the memory of its state."""
        self._uses: list[Use] = []
        self._touched = plan.touched(program)
        self._changed: list[Tensor] = []
        self.actions: list[Action] = []
        self.owners: list[Step] = []
        self.fixed: dict[str, Tensor] = {}
        self._copies: list[tuple[str, Any]] = []
        self._loose: list[tuple[str, str]] = []

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
        """See that its memory is where it was, or bind again; False if the interpreter has to run it.

        Its contexts are held: what it saw stays so until they are let go.
        """
        if self.valid(scope):
            return True
        if not self._state.look_up(scope):
            return False
        self._attach()
        self._uses = list(self._uses_of_state(scope))
        return True

    def _uses_of_state(self, scope: Scope) -> Iterator[Use]:
        return uses_of_state(self._touched, scope, self.frame.contexts)

    def in_turn(self, scope: Scope) -> bool:
        """Whether it may use the memory of its state without waiting for another; its contexts are held."""
        now = epoch.now  # before the look
        if self._turn is now:
            return True
        uses = self._uses if self.plan.pending is None else list(self._uses_of_state(scope))
        if not all([use.note() for use in uses]):
            return False
        if self.plan.pending is None:
            self._turn = now
        return True

    @property
    def varies(self) -> bool:
        """Whether memory of some value is another at each call."""
        return any(life.loose for life in self.lifespans.of.values())

    @property
    def resettable(self) -> bool:
        """Whether some of its memory lies in an arena."""
        held = [storage.allocation for storage in self._storages.values()]
        held += [tensor.allocation for tensor in self._state.tensors.values()]
        return any(isinstance(each, Piece) for each in held)

    @property
    def busy(self) -> bool:
        """Whether a run is under way: an operator of it calls back."""
        return self.begun.busy

    def valid(self, scope: Scope) -> bool:
        """Whether it is bound, and to the memory that its state and temporaries have now."""
        if not self._bound:
            return False
        for storage, generation in self._stamps:
            if storage.generation != generation:
                return False
        if self.before is not None and self._given is not self.before.fixed:
            return False
        return self._state.settled(scope)

    def _attach(self) -> None:
        self.block_way()
        self._bound = False
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
        self._turn = None
        keys = [(name, self.plan.feed_keys[name]) for name in self._feeds]
        self._copies = [(name, self.fixed[key].array()) for name, key in keys if key in self.fixed]
        self._loose = [(name, key) for name, key in keys if key not in self.fixed]
        self._same = self.plan.pending is None and not self.varies
        if self.before is None:
            self.frame.values = dict(self.fixed)
        self.attached += 1
        self._bound = True

    def detach(self) -> None:
        """Let go of the memory; the next call binds again."""
        self.block_way()
        self._bound = False
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
        return [name for name, _ in self._loose]

    @property
    def state(self) -> list[tuple[str, Tensor, bool]]:
        """The tensors of the scope that it reads or writes, by name, and whether it writes them."""
        return [(name, tensor, name in self._written) for name, tensor in self._state.tensors.items()]

    # A call

    def run(
        self, feeds: Mapping[str, Tensor], scope: Scope, latest: Latest | None = None
    ) -> tuple[Fetched, Plan] | None:
        """Run it, bound again if memory became another; returns what ``run_plan`` does.

        None: the interpreter has to run it, as an operator of it calls back, or state has no memory that fits.
        Whether it is valid is asked while the queue is held: until then another thread may take its memory.
        """
        contexts = self.frame.contexts
        for tensor in feeds.values():  # before a lock is held
            place, allocation = tensor.place, tensor.allocation
            assert place is not None and allocation is not None
            if allocation.sharing is not None or allocation.context is not contexts.get(place):
                transfer.ready(tensor, contexts.get(place) or get_context(place))
        if len(self.contexts) > 1:
            with held(self.contexts):
                if self.busy or not self.ready(scope):
                    return None
                if self.in_turn(scope):
                    return self._call(feeds, scope, latest)
        else:
            (context,) = self.contexts  # spelled out: a stack costs as much as ten small operators
            with context.lock, context.raw.activate():
                if self.busy or not self.ready(scope):
                    return None
                if self._turn is epoch.now or self.in_turn(scope):
                    return self._call(feeds, scope, latest)
        while True:
            with held(self.contexts, lambda: self._uses_of_state(scope)):
                if self.busy or not self.ready(scope):
                    return None
                if self.in_turn(scope):
                    return self._call(feeds, scope, latest)

    def _call(self, feeds: Mapping[str, Tensor], scope: Scope, latest: Latest | None) -> tuple[Fetched, Plan]:
        frame = self.frame
        if latest is not None:
            latest.bound = self
        ran: list[Bound] = []
        self.begin(scope)
        try:
            for name, array in self._copies:
                array[...] = feeds[name].array()
            for name, key in self._loose:
                frame.values[key] = feeds[name]
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
        run_steps(frame, observers())
        while frame.plan.pending is not None:
            go_on(frame, frame.plan.pending)
            run_steps(frame, observers())
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
            there = tensor.allocation is not None and tensor.contiguous  # what has no elements may have no memory
            if there and context.unit.info.host and context.xp is not None and context.array.eager:
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
def held(contexts: Sequence[Context], uses: Callable[[], Iterable[Use]] = lambda: ()) -> Iterator[None]:
    """Hold queues, as a run does, and have the turn of what is used."""
    with ExitStack() as stack:
        stack.enter_context(turn(contexts, uses))
        for context in contexts:
            if type(context.raw).activate is not ContextBase.activate:
                stack.enter_context(context.raw.activate())
        yield


def arenas_of(places: Iterable[Place]) -> tuple[Arena | None, ...]:
    """The arenas that this thread allocates from on some places; () if there are none."""
    return tuple([current_arena(memory_of(place)) for place in places]) if arenas_in_use() else ()


def refusal(plan: Plan, scope: Scope) -> str | None:
    """Why a plan cannot be bound at all, or None. What makes state, as startup programs do, runs once in any case."""
    for name in plan.written:
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
