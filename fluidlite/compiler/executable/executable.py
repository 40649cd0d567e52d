"""Executables: plans that are linked to memory. A call infers, dispatches and allocates nothing except results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any, Self

import numpy as np

from fluidlite.base.invalidation import cache_version
from fluidlite.compiler.executable.command_buffer import Action
from fluidlite.compiler.executable.linked_plan import NO_SCOPE, LinkedPlan, refusal
from fluidlite.compiler.instrumentation import timed_run, timer
from fluidlite.compiler.interpreter import plan_next_stage, read_fetches, run_stages
from fluidlite.compiler.planning.plan import Plan
from fluidlite.compiler.run_errors import fail
from fluidlite.memory.sharing import lock_contexts
from fluidlite.platform.context_pool import get_context
from fluidlite.program.scope import Scope
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

MAX_NEXT_STAGES = 8
"""Maximum number of executables of the next stage that one stage holds, one for each plan that followed it."""

Fetched = list[tuple[Any, Spec]]


class Latest:
    """A mutable cell with the executable that ran last."""

    __slots__ = ("executable",)

    def __init__(self) -> None:
        self.executable: Executable | None = None


class Executable(LinkedPlan):
    """A linked plan that can be called. It runs in stages if shapes depend on values of tensors."""

    @property
    def next_stage(self) -> Executable | None:
        """The stage that last ran after this one, if it is linked."""
        return next(reversed(self._next.values()), None)

    def run(
        self, feeds: Mapping[str, Tensor], scope: Scope, latest: Latest | None = None
    ) -> tuple[Fetched, Plan] | None:
        """Run the plan, after linking it again if its memory changed; return the result of ``run_plan``.

        Returns None if the interpreter has to run it: an operator of it calls back, or state has no memory that fits.
        Validity is checked with the queue locked, and again once earlier users of its state have finished: until then
        another thread may take its memory.
        """
        contexts = self.frame.contexts
        for tensor in feeds.values():  # before any lock is acquired
            place, allocation = tensor.place, tensor.allocation
            assert place is not None and allocation is not None
            if allocation.sharing is not None or allocation.context is not contexts.get(place):
                transfer.order_after_writes(tensor, contexts.get(place) or get_context(place))
        if len(self.contexts) > 1:
            with lock_contexts(self.contexts):
                if self.busy:
                    return None
                if self._can_run(scope):
                    return self._call(feeds, scope, latest)
        else:
            (context,) = self.contexts  # ExitStack would cost as much as ten small operators
            with context.lock, context.raw.activate():
                if self.busy:
                    return None
                if self._can_run(scope):
                    return self._call(feeds, scope, latest)
        while True:
            with lock_contexts(self.contexts, lambda: self._uses_of_state(scope)):
                if self.busy or not self.ensure_linked(scope):
                    return None
                if self._can_run(scope):
                    return self._call(feeds, scope, latest)

    def _can_run(self, scope: Scope) -> bool:
        """Whether it may use the memory of its state and is valid; checked in this order, it stays valid."""
        return (self._turn_version is cache_version.current or self.can_use_state(scope)) and self.valid(scope)

    def _call(self, feeds: Mapping[str, Tensor], scope: Scope, latest: Latest | None) -> tuple[Fetched, Plan]:
        if latest is not None:
            latest.executable = self
        stages_run: list[Executable] = []
        self.begin(scope)
        try:
            if not self.timed:
                return self._feed_and_fetch(feeds, stages_run)
            with self.timed_run():
                return self._feed_and_fetch(feeds, stages_run)
        except BaseException:
            for context in self.contexts:
                context.drop_deferred_errors()
            raise
        finally:
            self.end(stages_run)

    def timed_run(self) -> AbstractContextManager[Any]:
        """The context manager of a run that a timer records."""
        return timed_run(self.frame, self.contexts)

    def _feed_and_fetch(self, feeds: Mapping[str, Tensor], stages_run: list[Executable]) -> tuple[Fetched, Plan]:
        frame = self.frame
        for name, array in self._copies:
            array[...] = feeds[name].native()
        for name, key in self._dynamic_feeds:
            frame.values[key] = self.written.without_alias(feeds[name])
        last = self._stages(stages_run)
        return read_fetches(frame, partial(self._array_of, last)), frame.plan

    def begin(self, scope: Scope) -> None:
        self.frame.scope = scope
        self.main_storage.busy = True

    def end(self, stages_run: Sequence[Executable]) -> None:
        frame = self.frame
        self.main_storage.busy = False
        frame.scope = NO_SCOPE  # an executable does not keep a scope alive
        for stage in stages_run:
            for tensor in stage._changed:
                tensor.wrote()
        if not self._is_repeatable:
            frame.plan, frame.values = self.plan, dict(self.fixed)

    def _stages(self, stages_run: list[Executable]) -> Self | None:
        """Run this stage and those after it; return the last one, or None if the interpreter ran it."""
        frame, stage = self.frame, self
        while True:
            stages_run.append(stage)
            stage.act()
            if frame.plan.pending is None:
                return stage
            plan_next_stage(frame, frame.plan.pending)
            next_stage = stage._next_stage(frame.plan)
            if next_stage is None:
                break
            stage = next_stage
            frame.values.update(stage.fixed)
        run_stages(frame)
        return None

    def act(self) -> None:
        """Run the actions, between feeds and fetches."""
        timing = timer() if self.timed else None
        if timing is None:
            self._run_actions(self.actions)
            return
        with closing(timing.timed(self.frame, self.owners, self.actions)) as actions:
            self._run_actions(actions)

    def _run_actions(self, actions: Iterable[Action]) -> None:
        action: Action | None = None
        try:
            for action in actions:
                action()
        except Exception as exc:
            fail(exc, self.owners[self.actions.index(action)], self.frame)  # type: ignore[arg-type]

    def _next_stage(self, plan: Plan) -> Self | None:
        """Return the executable of the plan of the next stage; None at its first run, which may be its only one."""
        if plan not in self._next:
            self._next[plan] = None
            if len(self._next) > MAX_NEXT_STAGES:
                self._next.popitem(last=False)
            return None
        self._next.move_to_end(plan)
        executable = self._next[plan]
        if executable is None:
            if refusal(plan, self.frame.scope) is not None:
                return None
            executable = self._next[plan] = type(self)(plan, {}, self.storages, self.make_tensor, self, self.timed)
        return executable if executable.ensure_linked(self.frame.scope) and executable.valid(self.frame.scope) else None

    def _array_of(self, last: Executable | None, key: str, tensor: Tensor) -> Any:
        """The array of a result on the host: memory that it alone has, a view, or a copy."""
        if not self.storages.copy and last is not None and last.fixed.get(key) is tensor:
            view = np.asarray(tensor.native()).view()
            view.flags.writeable = False
            return view
        live_range = last.live_ranges.of.get(key) if last is not None else None
        return tensor.numpy() if live_range is not None and live_range.is_donated else np.array(tensor.native())
