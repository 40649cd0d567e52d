"""Runs the program of a computation on a place: a plan from the cache, bound to memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fluidlite.base.bounded import Bounded
from fluidlite.base.errors import FallbackWarning, FetchError, ProgramError
from fluidlite.framework.choose import generation
from fluidlite.framework.interpreter import MOST_TRIES, StateMovedError
from fluidlite.framework.kernel_checks import one_by_one
from fluidlite.framework.plan import Plan
from fluidlite.framework.planner import plan_block, updates
from fluidlite.framework.policy import Policy, policy
from fluidlite.framework.program import Program
from fluidlite.framework.scope import Scope
from fluidlite.framework.state import state_of
from fluidlite.framework.tensor import Tensor
from fluidlite.platform.place import Place
from fluidlite.platform.pool import get_context
from fluidlite.transformers.bound import Bound
from fluidlite.transformers.direct import Signature
from fluidlite.transformers.memory_plan import MemoryPlan
from fluidlite.transformers.pieces import Pieces, pieces
from fluidlite.transformers.replay import Replay

_MOST_PLANS = 64

Arrays = list[np.ndarray[Any, Any]]


class Runner:
    """An executor of one program: ``runner(arguments)`` returns fresh host arrays of what it fetches.

    Other dims of the arguments are planned and bound again; the last 64 plans are kept.

    Attributes
    ----------
    replay : Replay
    sign : callable or None
        Returns the signature of the straight ways that the replay keeps for its caller.
    """

    def __init__(
        self,
        program: Program,
        fetches: Sequence[str],
        place: Place,
        scope: Scope,
        replay: Replay | None = None,
        capability: str | None = None,
    ) -> None:
        self._capability = capability
        self._policies = policy(), policy()
        if capability is not None:
            self._policies = policy(), policy().with_codegen(place.kind, capability)
        self.replay = replay if replay is not None else Replay()
        self.sign: Callable[[], Signature] | None = None
        self.program = program
        self.fetches = tuple(fetches)
        self.place = place
        self.scope = scope
        self._trains = updates(program)
        used = {n for b in program.blocks for op in b.ops for n in (*op.input_arg_names, *op.output_arg_names)}
        used.update(fetches)
        self._state = tuple(v.name for v in program.list_vars() if v.persistable and v.name in used)
        self.plans: Bounded[Plan] = Bounded(_MOST_PLANS, "plans", 8 << 20)
        self._warned = False

    def __call__(self, arguments: Mapping[str, Tensor]) -> Arrays:
        """Run once; the arguments are borrowed until it returns."""
        key = tuple([(name, tensor.spec, tensor.place) for name, tensor in arguments.items()])
        stamp = generation(), self._policy()
        again = self.replay.again((key, get_context(self.place)), stamp, arguments, self.scope, self.sign)
        if again is None:
            for left in reversed(range(MOST_TRIES)):
                plan = self._plan(arguments)
                try:
                    again = self.replay.run(plan, self.program, arguments, self.scope, self.sign)
                    break
                except StateMovedError:
                    if not left:
                        raise
            self.replay.remember((key, get_context(self.place)), stamp, plan, self.scope)
        assert again is not None
        fetched, plan = again
        self._warn(plan)
        for name, (_, spec) in zip(self.fetches, fetched, strict=True):
            if spec.lod:
                raise FetchError(
                    f"the result {name!r} has LoD, which a NumPy array cannot hold"
                    "\n  Do: Executor.run(..., return_numpy=False)"
                )
        return [array for array, _ in fetched]

    @property
    def memory_plan(self) -> MemoryPlan:
        """Where the temporaries of the last call lie.

        Raises
        ------
        ProgramError
            If nothing was bound yet.
        """
        return self._last().memory

    @property
    def pieces(self) -> Pieces:
        """What the last call did: launches that are one call or one captured graph, and why other steps are alone.

        Raises
        ------
        ProgramError
            If nothing was bound yet.
        """
        return pieces(self._last())

    def _last(self) -> Bound:
        last = self.replay.last
        if last is None:
            raise ProgramError(
                "there is nothing to show: nothing of it was bound to memory yet; dims are known at the first call"
                "\n  Do: call it once"
            )
        return last

    def close(self) -> None:
        """Give memory back."""
        self.replay.clear()

    def _policy(self) -> Policy:
        """The preferences of the process, with this runner's generator of code."""
        found = policy()
        if self._capability is None:
            return found
        if found is not self._policies[0]:
            self._policies = found, found.with_codegen(self.place.kind, self._capability)
        return self._policies[1]

    def _plan(self, arguments: Mapping[str, Tensor]) -> Plan:
        state = state_of(self.scope, self._state)
        given = {name: (tensor._known(), tensor.place) for name, tensor in arguments.items()}
        wanted, inplace = self._policy(), not one_by_one()
        if inplace and self._trains:
            wanted = replace(wanted, repeated=True)
        key = (generation(), tuple(given.items()), tuple(state.items()), wanted, inplace)
        return self.plans.get(
            key,
            lambda: plan_block(
                self.program, self.place, given, state, self.fetches, wanted, inplace=inplace  # type: ignore[arg-type]
            ),
        )  # fmt: skip

    def _warn(self, plan: Plan) -> None:
        if self._warned or policy().fallback != "warn":
            return
        self._warned = True
        fallen = [line.op.type for line in plan.lines if line.lacks_kernel]
        if fallen:
            warnings.warn(
                f"{len(fallen)} of {len(plan.lines)} operators have no kernel for {self.place} "
                f"and run elsewhere: {', '.join(sorted(set(fallen)))}. "
                "fluid.set_fallback('allow') silences this, 'error' forbids it",
                FallbackWarning,
                stacklevel=5,
            )
