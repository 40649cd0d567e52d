"""Runs graphs on a place for executors and computations: looks up or makes a plan, runs it linked or interpreted."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fluidlite.base.collection import gc_paused
from fluidlite.base.errors import FallbackWarning
from fluidlite.base.fork import new_lock
from fluidlite.base.lru_cache import LRUCache
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.compiler.frame import StateMovedError
from fluidlite.compiler.interpreter import MAX_PLAN_RETRIES, run_plan
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.kernel_checks import needs_interpreter
from fluidlite.compiler.planning.plan import Plan
from fluidlite.compiler.planning.planner import plan_graph
from fluidlite.compiler.policy import Policy, policy
from fluidlite.compiler.selection.choice_cache import registry_versions
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.program.source_location import PACKAGE_FOLDER
from fluidlite.program.state import state_of
from fluidlite.tensor.tensor import Tensor

if TYPE_CHECKING:  # imported by compiling callers: it takes a fifth of the import time
    from fluidlite.compiler.body_executors import MakeExecutor
    from fluidlite.compiler.executable.executable import Fetched
    from fluidlite.compiler.executable.executable_cache import ExecutableCache, Signer

_MAX_PLANS = 64
"""Maximum number of plans in the cache of one runner."""


class GraphRunner:
    """Runs graphs on one place, with a cache of plans.

    ``executables``: the cache of linked plans; None: all plans are interpreted.
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
        self.plans: LRUCache[Plan] = LRUCache(_MAX_PLANS, "plans", 8 << 20)
        self.last: Plan | None = None
        self._bodies = bodies
        self._preferences = preferences
        self._policies: tuple[Policy, Policy] | None = None  # that of the process, and that of this runner
        self._generation: tuple[int, ...] = ()
        self._warned: WeakObjects[Program] = WeakObjects()
        self._lock = new_lock()

    def policy(self) -> Policy:
        """Return the preferences of the process, adapted by those of this runner."""
        process_policy = policy()
        if self._preferences is None:
            return process_policy
        if self._policies is None or process_policy is not self._policies[0]:
            self._policies = process_policy, self._preferences(process_policy)
        return self._policies[1]

    def run_cached(
        self, key: Hashable, policy: Policy, feeds: Mapping[str, Tensor], scope: Scope, signer: Signer | None = None
    ) -> Fetched | None:
        """Run the executable that is cached for a key; None at a cache miss: the caller has to plan.

        ``key``: everything that the plan depends on, except ``scope``, its state and ``policy``.
        ``signer``: returns the call signature for a fast path that later calls may take.
        """
        if self.executables is None:
            return None
        result = self.executables.run_cached(key, (registry_versions(), policy), feeds, scope, signer)
        if result is None:
            return None
        fetched, self.last = result
        return fetched

    def run(
        self,
        graph: Graph,
        feeds: Mapping[str, Tensor],
        scope: Scope,
        policy: Policy,
        key: Hashable = None,
        signer: Signer | None = None,
        check: Callable[[], None] | None = None,
    ) -> Fetched:
        """Run a graph once; feeds are borrowed until it returns.

        ``key``: the key of the executable for :meth:`run_cached`.
        ``check``: raises if the graph cannot run with these feeds; called before a plan is made.
        Returns the fetched values.
        """
        stamp = registry_versions(), policy
        for retries_left in reversed(range(MAX_PLAN_RETRIES)):
            state = state_of(scope, graph.state)  # may wait for a run, so it is outside the lock
            with self._lock:
                plan = self.last = self._plan(graph, feeds, state, policy, check)
            try:
                if self.executables is None:
                    fetched, last = run_plan(plan, feeds, scope, self._bodies)
                else:
                    fetched, last = self.executables.run(plan, feeds, scope, signer)
                break
            except StateMovedError:
                if not retries_left:
                    raise
        if self.executables is not None and key is not None:
            self.executables.insert_key(key, stamp, plan, scope)
        self.last = last
        if last is not plan:  # later stages were planned during the run
            self._warn(last, policy)
        return fetched

    def _plan(
        self, graph: Graph, feeds: Mapping[str, Tensor], state: Any, policy: Policy, check: Callable[[], None] | None
    ) -> Plan:
        inplace = not needs_interpreter()
        if self.executables is not None and inplace and (graph.updates or graph.program.repeated):
            policy = replace(policy, repeated=True)
        feed_specs = {name: (tensor._required_spec(), tensor.place or devices.host()) for name, tensor in feeds.items()}
        new_generation = registry_versions()
        if new_generation != self._generation:
            self.plans.clear()
            self._generation = new_generation

        def make() -> Plan:
            if check is not None:
                check()
            with gc_paused():
                plan = plan_graph(graph, self.place, feed_specs, state, policy, inplace=inplace)
            self._warn(plan, policy)
            return plan

        return self.plans.get((graph, tuple(feed_specs.items()), tuple(state.items()), policy, inplace), make)

    def _warn(self, plan: Plan, policy: Policy) -> None:
        """Warn once for each program of operators that run on the host since the place has no kernel."""
        if policy.fallback != "warn" or plan.program in self._warned:
            return
        fallback_types = [line.op.type for line in plan.lines if line.lacks_kernel]
        if fallback_types:
            self._warned.add(plan.program)
            warn_of_fallback(f"{len(fallback_types)} of {len(plan.lines)} operators", self.place, fallback_types)

    def clear(self) -> None:
        """Drop plans and executables with their memory."""
        self.plans.clear()
        if self.executables is not None:
            self.executables.clear()


def warn_of_fallback(what: str, place: Place, types: list[str]) -> None:
    """Warn, at the user's line, that operators of some types run on the host since the place has no kernel."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"{what} have no kernel for {place} and run on {devices.host()}: {', '.join(sorted(set(types)))}. "
        "fluid.explain shows why; fluid.set_fallback('allow') silences this, 'error' forbids it",
        FallbackWarning,
        stacklevel=level,
    )
