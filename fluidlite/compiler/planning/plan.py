"""The execution plan of a graph: kernel launches, copies between places and control-flow steps, in order.

The interpreter, the linker and explain share it. Where output sizes depend on values, a plan ends
(:class:`Pending`); the operators after that point are planned once the values have been computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fluidlite.base.lru_cache import LRUCache, weight_of
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.place import Place
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared
from fluidlite.program.program import Program
from fluidlite.tensor.tensor_spec import Spec


@dataclass(eq=False)
class Move:
    """A copy of a value to another place.

    ``why``: "feed" (a fed array to its reader's place), "transfer" (between operators), "home" (write-back of a state
    variable to its owning place), "state" (a state variable that an earlier run left on another place), "value"
    (numbers that the rest of the plan depends on, to the host), "layout" (in explain's output only: the step that
    rearranges a value on its place is a Launch of transpose2).
    ``into_state``: the target is a tensor of the scope, written in place.
    """

    name: str
    source: Place
    target: Place
    spec: Spec
    why: str
    from_key: str
    to_key: str
    into_state: bool = False


@dataclass(eq=False)
class Output:
    """One output of a step: a new tensor, or an alias of an input (``shares``: index of that input, else -1)."""

    key: str
    spec: Spec
    shares: int = -1
    state: bool = False


@dataclass(eq=False)
class Launch:
    """One kernel launch.

    ``writes_state``: it writes a state variable; ``guarded``: by a kernel that writes nothing after a deferred error.
    ``skip``: all outputs are empty and no random numbers are drawn, so nothing is launched.
    ``simple``: it reads values and writes new tensors only, without aliases or state; ``makes`` lists these tensors.
    ``where``: the index of its place in ``Plan.places``.
    ``layout_agnostic``: the kernel computes elementwise on equal layouts, as if they were plain.
    ``runs``: the prepared kernels, by context.
    ``free``: the keys of values that end here; ``recycle``: those whose tensors return to the tensor cache, each with
    the index of its place.
    ``random``: the seed and the stream of a random operator; see :func:`placement.random_key`.
    """

    op: GraphOp
    call: Call
    choice: Choice
    ins: list[str | None]
    in_specs: list[Spec]
    outs: list[Output]
    op_index: int
    free: list[str] = field(default_factory=list)
    recycle: list[tuple[str, int]] = field(default_factory=list)
    writes_state: bool = False
    guarded: bool = False
    skip: bool = False
    simple: bool = False
    layout_agnostic: bool = False
    makes: list[tuple[Spec, str]] = field(default_factory=list)
    where: int = 0
    runs: dict[Any, Prepared] = field(default_factory=dict)
    random: tuple[int, int] | None = None


@dataclass(eq=False)
class Control:
    """A control-flow or host-callback operator (``run(frame, op)``): by slot the keys of its inputs, its outputs and
    the places of these.
    """

    op: GraphOp
    op_index: int
    ins: dict[str, list[str]] = field(default_factory=dict)
    outs: dict[str, list[Output]] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    free: list[str] = field(default_factory=list)


Step = Move | Launch | Control


def step_name(step: Step) -> str:
    """The operator's type, or which value moves to which place."""
    if isinstance(step, Move):
        return f"move {step.name} to {step.target}"
    return step.call.op.type if isinstance(step, Launch) else step.op.type


@dataclass(eq=False)
class PlanEntry:
    """One operator of the program in explain's output: its choice, its call and the moves that it needs."""

    op: GraphOp
    choice: Choice | None
    call: Call | None
    moves: list[Move] = field(default_factory=list)

    @property
    def how(self) -> str:
        """One of ``policy.KERNEL_KINDS``, or "control"."""
        return self.choice.how if self.choice is not None else "control"

    @property
    def lacks_kernel(self) -> bool:
        """Whether it runs on the fallback place because its own place has no kernel for it."""
        return self.choice is not None and self.choice.how == "fallback" and not self.choice.moved


MAX_CACHED_PLANS = 64
"""Plans that one Pending caches: one for each combination of numbers and specs that ended the plan before it."""


@dataclass(eq=False)
class Pending:
    """The end of a plan whose later operators depend on values that the plan computes.

    ``values``: keys of small tensors on the host whose numbers later operators take as metadata.
    ``dims``: keys of tensors whose dims the run itself determines.
    ``resume``: ``resume(numbers by value, specs by value)`` plans the later operators; ``plans`` caches the results.
    """

    values: Mapping[GraphValue, str]
    dims: Mapping[GraphValue, str]
    resume: Callable[[Mapping[GraphValue, tuple[Any, ...]], Mapping[GraphValue, Spec]], Plan]
    plans: LRUCache[Plan] = field(default_factory=lambda: LRUCache(MAX_CACHED_PLANS, "plans of the rest", 4 << 20))

    def next(self, values: Mapping[GraphValue, tuple[Any, ...]], specs: Mapping[GraphValue, Spec]) -> Plan:
        """Return the plan of the later operators for these numbers and specs, cached."""
        key = (tuple(values.items()), tuple(specs.items()))
        return self.plans.get(key, lambda: self.resume(values, specs))


@dataclass(eq=False)
class Plan:
    """The steps of a run in order, and the entries that explain prints.

    ``program``: the program of the planned graph; ``writes``: the state variables that the graph writes.
    ``lines``: one entry for each operator that runs; ``pruned``: how many operators do not run.
    ``state``: by state variable, whether it is read before it is written.
    ``state_specs``: the specs and places of the scope's state for which the plan is valid.
    ``feed_keys``: by fed name the key of its value. A fed state variable has another key than the variable: the fed
    value and the value that the run stores are two values.
    ``before``: the plan whose continuation this is; ``lines`` and ``moves`` include it.
    ``last_use``: by key the index of the last step that uses it; at least the number of steps if it is used
    after the last step.
    """

    place: Place
    program: Program
    writes: frozenset[str]
    steps: list[Step] = field(default_factory=list)
    lines: list[PlanEntry] = field(default_factory=list)
    pruned: int = 0
    state: dict[str, bool] = field(default_factory=dict)
    state_specs: Mapping[str, tuple[Spec, Place]] = field(default_factory=dict)
    feeds: dict[str, Spec] = field(default_factory=dict)
    feed_keys: dict[str, str] = field(default_factory=dict)
    fetches: list[tuple[str, str, Place, Spec]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    pending: Pending | None = None
    before: Plan | None = None
    last_use: dict[str, int] = field(default_factory=dict)

    @cached_property
    def written(self) -> dict[str, tuple[Spec, Place]]:
        """State that launches and moves write, with its spec and place afterwards; Control steps are not counted."""
        written: dict[str, tuple[Spec, Place]] = {}
        for step in self.steps:
            if isinstance(step, Launch):
                written.update({out.key: (out.spec, step.choice.place) for out in step.outs if out.state})
            elif isinstance(step, Move) and step.into_state:
                written[step.to_key] = (step.spec, step.target)
        return written

    @cached_property
    def state_writes(self) -> frozenset[str]:
        """State that this plan may write or replace, without its continuation."""
        controls = [step for step in self.steps if isinstance(step, Control)]
        control_writes = {out.key for step in controls for outs in step.outs.values() for out in outs if out.state}
        return frozenset(self.written) | control_writes

    @cached_property
    def own_uses(self) -> dict[str, bool]:
        """State that this plan uses, without its continuation, and whether it may write it."""
        return {name: name in self.state_writes for name in (*self.state, *self.state_writes)}

    @cached_property
    def state_uses(self) -> dict[str, bool]:
        """State that this plan and its continuation use, and whether they may write it."""
        return self.own_uses if self.pending is None else self.own_uses | dict.fromkeys(self.writes, True)

    @cached_property
    def queues(self) -> tuple[Place, ...]:
        """The places whose queues a run locks: the plan's own, and those where the scope's state is located."""
        return tuple(dict.fromkeys((*self.places, *(place for _, place in self.state_specs.values()))))

    @cached_property
    def weight(self) -> int:
        """An estimate of the plan's bytes, for caches; prepared kernels are counted in their own cache."""
        nbytes = 1000 + weight_of(self.feeds)
        for step in self.steps:
            nbytes += 1000
            if isinstance(step, Launch):
                nbytes += step.call.weight + weight_of(step.in_specs)
        return nbytes

    @property
    def is_static(self) -> bool:
        """Whether all dims are static: none is -1, and none depends on values."""
        specs = [o.spec for s in self.steps if isinstance(s, Launch) for o in s.outs]
        specs += [s.spec for s in self.steps if isinstance(s, Move)]
        return self.pending is None and all(spec.is_static for spec in (*self.feeds.values(), *specs))

    @property
    def moves(self) -> list[Move]:
        """All copies between places, in order."""
        earlier = self.before.moves if self.before is not None else []
        return earlier + [step for step in self.steps if isinstance(step, Move)]
