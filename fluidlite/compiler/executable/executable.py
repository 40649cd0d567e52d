"""Executables: plans with their memory. A call dispatches, infers and allocates nothing but results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, Self

import numpy as np

from fluidlite.base.invalidation import cache_version
from fluidlite.compiler.executable.command_buffer import Action
from fluidlite.compiler.executable.linked_plan import NO_SCOPE, LinkedPlan, refusal
from fluidlite.compiler.instrumentation import observers, timed_run, timer
from fluidlite.compiler.interpreter import begin_read, go_on, run_steps
from fluidlite.compiler.planning.plan import Plan
from fluidlite.compiler.run_errors import fail, raise_late
from fluidlite.memory.sharing import held
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.place import Place
from fluidlite.program.scope import Scope
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray
from fluidlite.tensor.tensor_spec import Spec

MOST_NEXT = 8
"""Executables of the plans that follow a stage: so many are kept."""

Fetched = list[tuple[Any, Spec]]


class Latest:
    __slots__ = ("executable",)

    def __init__(self) -> None:
        self.executable: Executable | None = None


class Executable(LinkedPlan):
    """A linked plan that is called, stage by stage where sizes depend on values."""

    @property
    def following(self) -> Executable | None:
        """The stage that ran behind it last, if that was bound."""
        return next(reversed(self._next.values()), None)

    def run(
        self, feeds: Mapping[str, Tensor], scope: Scope, latest: Latest | None = None
    ) -> tuple[Fetched, Plan] | None:
        """Run it, bound again if memory became another; returns what ``run_plan`` does.

        None: the interpreter has to run it, as an operator of it calls back, or state has no memory that fits.
        Whether it is valid is asked while the queue is held, and again once it has its turn: until then another thread
        may take its memory.
        """
        contexts = self.frame.contexts
        for tensor in feeds.values():  # before a lock is held
            place, allocation = tensor.place, tensor.allocation
            assert place is not None and allocation is not None
            if allocation.sharing is not None or allocation.context is not contexts.get(place):
                transfer.ready(tensor, contexts.get(place) or get_context(place))
        if len(self.contexts) > 1:
            with held(self.contexts):
                if self.busy:
                    return None
                if self._may_run(scope):
                    return self._call(feeds, scope, latest)
        else:
            (context,) = self.contexts  # spelled out: a stack costs as much as ten small operators
            with context.lock, context.raw.activate():
                if self.busy:
                    return None
                if self._may_run(scope):
                    return self._call(feeds, scope, latest)
        while True:
            with held(self.contexts, lambda: self._uses_of_state(scope)):
                if self.busy or not self.ready(scope):
                    return None
                if self._may_run(scope):
                    return self._call(feeds, scope, latest)

    def _may_run(self, scope: Scope) -> bool:
        """Whether it may use the memory of its state, and is bound to that: in this order, for then it stays so."""
        return (self._turn is cache_version.current or self.in_turn(scope)) and self.valid(scope)

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
        return timed_run(self.frame, self.contexts)

    def _feed_and_fetch(self, feeds: Mapping[str, Tensor], ran: list[Executable]) -> tuple[Fetched, Plan]:
        frame = self.frame
        for name, array in self._copies:
            array[...] = feeds[name].native()
        for name, key in self._loose:
            frame.values[key] = self.written.apart(feeds[name])
        last = self._stages(ran)
        return self._fetch(last), frame.plan

    def begin(self, scope: Scope) -> None:
        self.frame.scope = scope
        self.begun.busy = True

    def end(self, ran: Sequence[Executable]) -> None:
        frame = self.frame
        self.begun.busy = False
        frame.scope = NO_SCOPE  # nothing that is bound keeps a scope alive
        for stage in ran:
            for tensor in stage._changed:
                tensor.wrote()
        if not self._same:
            frame.plan, frame.values = self.plan, dict(self.fixed)

    def _stages(self, ran: list[Executable]) -> Self | None:
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

    def _after(self, plan: Plan) -> Self | None:
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
            found = self._next[plan] = type(self)(plan, {}, self.storages, self.make_tensor, self, self.timed)
        return found if found.ready(self.frame.scope) and found.valid(self.frame.scope) else None

    def _fetch(self, last: Executable | None) -> Fetched:
        """Copy out what was asked for, or hand over memory that only the result has; see the status words."""
        frame, fetched = self.frame, []
        touched: dict[Place, Context] = {}
        for key, context, tensor, spec in frame.fetched():
            if isinstance(tensor, TensorArray):
                fetched.append((begin_read(tensor, context), tensor.spec or spec))
                touched[context.place] = context
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
            touched[context.place] = context
        suspects = [context for context in self.contexts if context.suspect]
        if suspects or touched:
            raise_late(frame, suspects, wait_for=touched)
        return fetched
