"""Runs graphs on a place, for executors and computations: a plan from the cache, bound to memory or interpreted."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fluidlite.base.collection import paused
from fluidlite.base.errors import FallbackWarning
from fluidlite.base.fork import new_lock
from fluidlite.base.lru_cache import LRUCache
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.compiler.frame import StateMovedError
from fluidlite.compiler.interpreter import MOST_TRIES, run_plan
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.kernel_checks import one_by_one
from fluidlite.compiler.planning.plan import Plan
from fluidlite.compiler.planning.planner import plan_graph
from fluidlite.compiler.policy import Policy, policy
from fluidlite.compiler.selection.choice_cache import generation
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.program.source_location import PACKAGE_FOLDER
from fluidlite.program.state import state_of
from fluidlite.tensor.tensor import Tensor

if TYPE_CHECKING:  # imported by who compiles: it is a fifth of the time of the import
    from fluidlite.compiler.body_executors import MakeExecutor
    from fluidlite.compiler.executable.executable import Fetched
    from fluidlite.compiler.executable.executable_cache import ExecutableCache, Sign

_MOST_PLANS = 64


class GraphRunner:
    """Runs graphs on one place; the last 64 plans are kept.

    ``executables``: where plans are bound to memory; None: all are interpreted.
    """

    def __init__(
        self,
        place: Place,
        executables: ExecutableCache | None = None,
        bodies: MakeExecutor | None = None,
        preferences: Callable[[Policy], Policy] | None = None,
    ) -> None:
        self.place = place
        self.executables: ExecutableCache | None = executables
        self.plans: LRUCache[Plan] = LRUCache(_MOST_PLANS, "plans", 8 << 20)
        self.last: Plan | None = None
        self._bodies = bodies
        self._preferences = preferences
        self._policies: tuple[Policy, Policy] | None = None  # the process's, and what is preferred here of it
        self._newest: tuple[Any, Plan] | None = None  # and all that chose it
        self._generation: tuple[int, ...] = ()
        self._warned: WeakObjects[Program] = WeakObjects()
        self._lock = new_lock()

    def policy(self) -> Policy:
        """The preferences of the process, and of whose graphs it runs."""
        found = policy()
        if self._preferences is None:
            return found
        if self._policies is None or found is not self._policies[0]:
            self._policies = found, self._preferences(found)
        return self._policies[1]

    def again(
        self, key: Hashable, policy: Policy, feeds: Mapping[str, Tensor], scope: Scope, sign: Sign | None = None
    ) -> Fetched | None:
        """Run what ran under a key before, if it is bound and its state is where it was; None: it has to be planned.

        ``key``: all that chose the plan, but ``scope``, its state, and ``policy``.
        ``sign``: returns the signature of a fast path that later calls may take.
        """
        if self.executables is None:
            return None
        found = self.executables.again(key, (generation(), policy), feeds, scope, sign)
        if found is None:
            return None
        fetched, self.last = found
        return fetched

    def run(
        self,
        graph: Graph,
        feeds: Mapping[str, Tensor],
        scope: Scope,
        policy: Policy,
        key: Hashable = None,
        sign: Sign | None = None,
        check: Callable[[], None] | None = None,
    ) -> Fetched:
        """Run a graph once; feeds are borrowed until it returns.

        ``key``: under which :meth:`again` finds it.
        ``check``: raises where the graph cannot be run with such feeds; it is asked before a plan is made.
        Returns what was fetched.
        """
        stamp = generation(), policy
        for left in reversed(range(MOST_TRIES)):
            state = state_of(scope, graph.state)  # may wait for a run: the lock is free
            with self._lock:
                plan = self.last = self._plan(graph, feeds, state, policy, check)
            try:
                if self.executables is None:
                    fetched, last = run_plan(plan, feeds, scope, self._bodies)
                else:
                    fetched, last = self.executables.run(plan, feeds, scope, sign)
                break
            except StateMovedError:
                if not left:
                    raise
        if self.executables is not None and key is not None:
            self.executables.remember(key, stamp, plan, scope)
        self.last = last
        if last is not plan:  # its rest was planned on the way
            self._warn(last, policy)
        return fetched

    def _plan(
        self, graph: Graph, feeds: Mapping[str, Tensor], state: Any, policy: Policy, check: Callable[[], None] | None
    ) -> Plan:
        inplace = not one_by_one()
        if self.executables is not None and inplace and (graph.updates or graph.program.repeated):
            policy = replace(policy, repeated=True)
        given = {name: (tensor._known(), tensor.place or devices.host()) for name, tensor in feeds.items()}
        now = generation()
        if now != self._generation:
            self.plans.clear()
            self._newest = None
            self._generation = now
        told = graph, given, state, policy, inplace
        if self._newest is not None and self._newest[0] == told:  # most specs are the same objects: no hash of them
            return self._newest[1]

        def make() -> Plan:
            if check is not None:
                check()
            with paused():
                plan = plan_graph(graph, self.place, given, state, policy, inplace=inplace)
            self._warn(plan, policy)
            return plan

        plan = self.plans.get((graph, tuple(given.items()), tuple(state.items()), policy, inplace), make)
        self._newest = told, plan
        return plan

    def _warn(self, plan: Plan, policy: Policy) -> None:
        """Warn, once a program, of operators that run on the host for want of a kernel."""
        if policy.fallback != "warn" or plan.program in self._warned:
            return
        fallen = [line.op.type for line in plan.lines if line.lacks_kernel]
        if fallen:
            self._warned.add(plan.program)
            warn_of_fallback(f"{len(fallen)} of {len(plan.lines)} operators", self.place, fallen)

    def clear(self) -> None:
        """Let go of plans and of the memory that they are bound to."""
        self.plans.clear()
        self._newest = None
        if self.executables is not None:
            self.executables.clear()


def warn_of_fallback(what: str, place: Place, types: list[str]) -> None:
    """Warn, at the user's line, that operators of some types run on the host for want of a kernel."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"{what} have no kernel for {place} and run on {devices.host()}: {', '.join(sorted(set(types)))}. "
        "fluid.explain shows why; fluid.set_fallback('allow') silences this, 'error' forbids it",
        FallbackWarning,
        stacklevel=level,
    )
