"""Executables: plans with their memory. A call dispatches, infers and allocates nothing but results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import Any, Protocol
from weakref import ref

import numpy as np

from fluidlite.base.errors import OutOfMemoryError, ProgramError
from fluidlite.base.invalidation import cache_version
from fluidlite.compiler.body_executors import MakeExecutor
from fluidlite.compiler.executable.linker import Action, Linker, MakeTensor
from fluidlite.compiler.executable.state_binding import StateBinding
from fluidlite.compiler.frame import Frame, uses_of_state
from fluidlite.compiler.instrumentation import observers, timer
from fluidlite.compiler.interpreter import begin_read, go_on, run_steps
from fluidlite.compiler.kernel_runs import prepare_step
from fluidlite.compiler.memory.live_ranges import LiveRanges
from fluidlite.compiler.memory.memory_plan import MemoryPlan
from fluidlite.compiler.memory.storage import DeviceBufferStorage, DeviceTensor
from fluidlite.compiler.planning.plan import Launch, Move, Plan, Step
from fluidlite.compiler.run_errors import fail, raise_late, what
from fluidlite.memory import memory_of
from fluidlite.memory.arena import Arena, arenas_in_use, current_arena
from fluidlite.memory.bump import Piece
from fluidlite.memory.sharing import Use, turn
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device import ContextBase
from fluidlite.platform.place import Place
from fluidlite.program.prepared import Prepared
from fluidlite.program.scope import Scope
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec

_NO_SCOPE = Scope()

MOST_NEXT = 8
"""Executables of the plans that follow a stage: so many are kept."""

Fetched = list[tuple[Any, Spec]]


class Latest:
    """What ran last.

    Attributes
    ----------
    executable : Executable or None
    """

    __slots__ = ("executable",)

    def __init__(self) -> None:
        self.executable: Executable | None = None


class Storages(Protocol):
    """Where an executable asks for its memory.

    Attributes
    ----------
    copy : bool
        Whether results are copies.
    bodies : callable or None
        What makes the executors of sub-blocks.
    allocate : callable
        Has room for what each of some storages needs.
    """

    copy: bool
    bodies: MakeExecutor | None
    allocate: Callable[[Sequence[DeviceBufferStorage]], None]

    def of(self, context: Context, stage: int = 0) -> DeviceBufferStorage:
        """The storage of a context, for a stage of programs."""
        ...


class Executable:
    """A plan that is bound to memory, that of the state in a scope included, and to the contexts of this thread.

    Parameters
    ----------
    plan : Plan
    feeds : mapping of name to Tensor
        Of the call that it is bound for; later ones have the same specs and places.
    storages : Storages
    make_tensor : callable
        ``make_tensor(storage, spec, offset)``.
    before : Executable or None
        The stage that it goes on from.
    timed : bool
        It is linked for a timer: each operator is a call of its own, between reads of a clock.

    Attributes
    ----------
    memory : MemoryPlan
    attached : int
        How often its steps were bound: once, and again whenever memory of state or of an arena became another.
    arenas : tuple
        What :func:`arenas_of` said of its places when it was bound: its memory is there.
    begun : DeviceBufferStorage
        The storage that is busy while it runs.
    fast_path : weak reference to FastPath, or None
        Its fast path, if one was made.
    tried : int
        How often it had been bound when a fast path was last tried.
    """

    def __init__(
        self,
        plan: Plan,
        feeds: Mapping[str, Tensor],
        storages: Storages,
        make_tensor: MakeTensor = DeviceTensor.at,
        before: Executable | None = None,
        timed: bool = False,
    ) -> None:
        self.plan = plan
        self.timed = timed
        self.make_tensor = make_tensor
        self.storages = storages
        self.before = before
        self.stage: int = before.stage + 1 if before is not None else 0
        self.frame: Frame = before.frame if before is not None else Frame(plan, _NO_SCOPE, {})
        if before is None:
            self.frame.bodies = storages.bodies
            self.frame.contexts = {place: get_context(place) for place in plan.places}
        self.contexts: list[Context] = list(self.frame.contexts.values())
        dynamic_keys = before.dynamic_keys() if before is not None else {}
        self.arenas = arenas_of(plan.places)
        self.begun = storages.of(self.frame.contexts[plan.place])
        self.fast_path: ref[Any] | None = None
        self.tried = 0
        self._prepared: dict[int, Prepared] = {}
        self._feeds = {name: tensor.place for name, tensor in feeds.items() if tensor.place is not None}
        with held(self.contexts):
            self.live_ranges = LiveRanges(plan, self._prepare(), self._feeds, dynamic_keys, storages.copy)
        self.memory = MemoryPlan(plan, self.live_ranges)
        self._storages = {place: storages.of(self.frame.contexts[place], self.stage) for place in self.memory.arenas}
        self._allocate = storages.allocate
        self._written = plan.written
        self._state = StateBinding(sorted(self.live_ranges.state), self._written, plan.state_specs)
        self._next: OrderedDict[Plan, Executable | None] = OrderedDict()
        self._stamps: list[tuple[DeviceBufferStorage, int]] = []
        self._earlier: Mapping[str, Tensor] | None = None
        self.attached = 0
        self._linked = False
        self._turn: object = None
        """The cache version at which it was its turn to use the memory of its state."""
        self._uses: list[Use] = []
        self._touched = plan.touched
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
                    _, space, self._prepared[index] = prepare_step(step, self.frame.contexts[step.choice.place])
                except Exception as exc:
                    fail(exc, step, self.frame)
                workspaces[index] = space.nbytes if space is not None else 0
        return workspaces

    def run_of(self, index: int) -> Prepared | None:
        """The prepared kernel of a step, if it has one."""
        return self._prepared.get(index)

    @property
    def following(self) -> Executable | None:
        """The stage that ran behind it last, if that was bound."""
        return next(reversed(self._next.values()), None)

    def dynamic_keys(self) -> dict[str, bool]:
        """What a later stage finds: whether the memory of each value is another at each call."""
        return {key: life.loose for key, life in self.live_ranges.of.items()}

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
        now = cache_version.current  # before the look
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
        return any(life.loose for life in self.live_ranges.of.values())

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
        if not self._linked:
            return False
        for storage, generation in self._stamps:
            if storage.generation != generation:
                return False
        if self.before is not None and self._earlier is not self.before.fixed:
            return False
        return self._state.valid(scope)

    def _attach(self) -> None:
        self.close_fast_path()
        self._linked = False
        for place, storage in self._storages.items():
            storage.needed = self.memory.arenas[place]
        try:
            self._allocate(tuple(self._storages.values()))
        except OutOfMemoryError as exc:
            small = next(
                (p for p, storage in self._storages.items() if storage.nbytes < storage.needed), self.plan.place
            )
            step = self.plan.steps[min(self.memory.fullest(small), len(self.plan.steps) - 1)]
            raise OutOfMemoryError(f"temporaries of the program, most of them at {what(step)}: {exc}") from exc
        for storage in self._storages.values():
            if storage.nbytes < storage.needed:
                raise ProgramError(
                    f"{storage!r} was not allocated; expected {storage.needed} bytes"
                    "\n  Do: allocate it in transform_allocate"
                )
            storage.users.add(self)
        self._stamps = [(storage, storage.generation) for storage in self._storages.values()]
        self._earlier = self.before.fixed if self.before is not None else {}
        linker = Linker(
            self.plan,
            self.live_ranges,
            self.memory,
            self._prepared,
            self.frame,
            self._storages,
            self._state.tensors,
            self._feeds,
            self._earlier,
            self.make_tensor,
            self.timed,
        )
        self.actions, self.owners, self.fixed = linker.actions, linker.owners, linker.fixed
        self._changed = [self._state.tensors[name] for name in self._written]
        self._turn = None
        keys = [(name, self.plan.feed_keys[name]) for name in self._feeds]
        self._copies = [(name, self.fixed[key].native()) for name, key in keys if key in self.fixed]
        self._loose = [(name, key) for name, key in keys if key not in self.fixed]
        self._same = self.plan.pending is None and not self.varies
        if self.before is None:
            self.frame.values = dict(self.fixed)
        self.attached += 1
        self._linked = True

    def detach(self) -> None:
        """Let go of the memory; the next call binds again."""
        self.close_fast_path()
        self._linked = False
        self.actions, self.owners, self.fixed = [], [], {}
        self._copies = []
        if self.before is None:
            self.frame.values = {}

    def close_fast_path(self) -> None:
        """Close its fast path, if it has one."""
        fast_path = self.fast_path() if self.fast_path is not None else None
        if fast_path is not None:
            fast_path.close()
        self.fast_path = None

    @property
    def later(self) -> Executable | None:
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
                if self._turn is cache_version.current or self.in_turn(scope):
                    return self._call(feeds, scope, latest)
        while True:
            with held(self.contexts, lambda: self._uses_of_state(scope)):
                if self.busy or not self.ready(scope):
                    return None
                if self.in_turn(scope):
                    return self._call(feeds, scope, latest)

    def _call(self, feeds: Mapping[str, Tensor], scope: Scope, latest: Latest | None) -> tuple[Fetched, Plan]:
        if latest is not None:
            latest.executable = self
        ran: list[Executable] = []
        self.begin(scope)
        try:
            if not self.timed:
                return self._feed_and_fetch(feeds, ran)
            with self.timed_run():
                return self._feed_and_fetch(feeds, ran)
        except BaseException:
            for context in self.contexts:
                context.forget_late()
            raise
        finally:
            self.end(ran)

    def timed_run(self) -> AbstractContextManager[Any]:
        """What a run is inside of, where a timer records it."""
        timing = timer()
        return timing.run(self.frame, self.contexts) if timing is not None else nullcontext()

    def _feed_and_fetch(self, feeds: Mapping[str, Tensor], ran: list[Executable]) -> tuple[Fetched, Plan]:
        frame = self.frame
        for name, array in self._copies:
            array[...] = feeds[name].native()
        for name, key in self._loose:
            frame.values[key] = feeds[name]
        last = self._stages(ran)
        return self._fetch(last), frame.plan

    def begin(self, scope: Scope) -> None:
        """Begin a run."""
        self.frame.scope = scope
        self.begun.busy = True

    def end(self, ran: Sequence[Executable]) -> None:
        """End a run of some stages."""
        frame = self.frame
        self.begun.busy = False
        frame.scope = _NO_SCOPE  # nothing that is bound keeps a scope alive
        for stage in ran:
            for tensor in stage._changed:
                tensor.wrote()
        if not self._same:
            frame.plan, frame.values = self.plan, dict(self.fixed)

    def _stages(self, ran: list[Executable]) -> Executable | None:
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
        """Do all that it does between feeds and fetches."""
        timing = timer() if self.timed else None
        if timing is None:
            self._act(self.actions)
            return
        with closing(timing.timed(self.frame, self.owners, self.actions)) as actions:
            self._act(actions)

    def _act(self, actions: Iterable[Action]) -> None:
        action: Action | None = None
        try:
            for action in actions:
                action()
        except Exception as exc:
            fail(exc, self.owners[self.actions.index(action)], self.frame)  # type: ignore[arg-type]

    def _after(self, plan: Plan) -> Executable | None:
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
            found = self._next[plan] = Executable(plan, {}, self.storages, self.make_tensor, self, self.timed)
        return found if found.ready(self.frame.scope) else None

    def _fetch(self, last: Executable | None) -> Fetched:
        """Copy out what was asked for, or hand over memory that only the result has; see the status words."""
        frame, fetched = self.frame, []
        touched: dict[Place, Context] = {}
        for name, key, place, spec in frame.plan.fetches:
            context = frame.contexts[place]
            tensor = frame.values.get(key)
            if tensor is None:
                raise ProgramError(f"variable {name!r} was fetched, but the run made no value of it")
            if isinstance(tensor, TensorArray):
                fetched.append((begin_read(tensor, context), tensor.spec or spec))
                touched[place] = context
                continue
            there = tensor.allocation is not None and tensor.contiguous  # what has no elements may have no memory
            if there and context.unit.info.host and context.xp is not None and context.array.eager:
                if not self.storages.copy and last is not None and last.fixed.get(key) is tensor:
                    view = np.asarray(tensor.native()).view()
                    view.flags.writeable = False
                    fetched.append((view, tensor.spec or spec))
                    continue
                life = last.live_ranges.of.get(key) if last is not None else None
                handed_over = life is not None and life.handed_over
                array = tensor.numpy() if handed_over else np.array(tensor.native())
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
        elif not isinstance(step, Launch) and any(
            out.state and out.spec.kind != TENSOR_ARRAY for outs in step.outs.values() for out in outs
        ):
            return f"{step.op} makes state"
    return None
