"""The plan of one run: what runs where, with which kernel, and what moves. Interpreter and explain share it.

Where sizes depend on values, a plan ends there (:class:`Pending`), and the rest is planned once they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from fluidlite.base.lru_cache import LRUCache, weight_of
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.place import Place
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared, Run
from fluidlite.program.program import Program
from fluidlite.tensor.tensor_spec import Spec


@dataclass(eq=False)
class Move:
    """A copy of a value to another place.

    ``why``: "feed" (a fed array to its reader's place), "transfer" (between operators), "home" (a state variable
    that was written elsewhere goes back), "state" (a state variable that was left elsewhere by an earlier run),
    "value" (numbers that the rest of the plan depends on, to the host), "layout" (only in what explain shows: the
    step that rearranges a value on its place is a Launch of transpose2).
    ``into_state`` says that the target is a scope's tensor, written in place.
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
    """One output of a step: a new tensor, or the memory of an input (``shares``: index among the inputs)."""

    key: str
    spec: Spec
    shares: int = -1
    state: bool = False


class ReadyKernel(NamedTuple):
    """A prepared kernel on one context: what runs, the spec of its workspace, and all that was prepared."""

    run: Run
    workspace: Spec | None
    prepared: Prepared


@dataclass(eq=False)
class Launch:
    """One kernel run.

    ``writes_state``: it writes a state variable; ``guarded``: by a kernel that writes nothing after a deferred error.
    ``where`` is the index of its place in ``Plan.places``; ``simple``: it only reads values and makes
    new ones, which are ``makes``.
    ``blind``: the kernel computes element by element on equal layouts, as if they were plain.
    ``runs`` holds what was prepared, with its workspace, by context. ``free`` are the keys that nothing reads
    later; ``recycle`` those of them whose tensors serve again, each with the index of its place.
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
    blind: bool = False
    makes: list[tuple[Spec, str]] = field(default_factory=list)
    where: int = 0
    runs: dict[Any, ReadyKernel] = field(default_factory=dict)
    random: tuple[int, int] | None = None


@dataclass(eq=False)
class Control:
    """An operator that runs itself (``run(frame, op)``): the keys of what it reads, by slot, and what it makes."""

    op: GraphOp
    op_index: int
    ins: dict[str, list[str]] = field(default_factory=dict)
    outs: dict[str, list[Output]] = field(default_factory=dict)
    free: list[str] = field(default_factory=list)


Step = Move | Launch | Control


def step_name(step: Step) -> str:
    """What a step does, in a word, or where it moves what."""
    if isinstance(step, Move):
        return f"move {step.name} to {step.target}"
    return step.call.op.type if isinstance(step, Launch) else step.op.type


@dataclass(eq=False)
class Line:
    """What explain says of one operator."""

    op: GraphOp
    choice: Choice | None
    call: Call | None
    moves: list[Move] = field(default_factory=list)

    @property
    def how(self) -> str:
        """One of ``policy.HOWS``, or "control"."""
        return self.choice.how if self.choice is not None else "control"

    @property
    def lacks_kernel(self) -> bool:
        """Whether it runs elsewhere because its place has no kernel for it."""
        return self.choice is not None and self.choice.how == "fallback" and not self.choice.moved


_MOST_NEXT = 64


@dataclass(eq=False)
class Pending:
    """Where a plan ends, since what follows depends on values.

    ``values``: small tensors on the host whose numbers the rest takes as metadata.
    ``dims``: tensors whose dims the run itself finds.
    ``resume``: ``resume(numbers by value, specs by value)`` plans the rest.
    """

    values: Mapping[GraphValue, str]
    dims: Mapping[GraphValue, str]
    resume: Callable[[Mapping[GraphValue, tuple[Any, ...]], Mapping[GraphValue, Spec]], Plan]
    plans: LRUCache[Plan] = field(default_factory=lambda: LRUCache(_MOST_NEXT, "plans of the rest", 4 << 20))

    def next(self, values: Mapping[GraphValue, tuple[Any, ...]], specs: Mapping[GraphValue, Spec]) -> Plan:
        """The plan of the rest, for these answers; the last 64 are kept."""
        key = (tuple(values.items()), tuple(specs.items()))
        return self.plans.get(key, lambda: self.resume(values, specs))


@dataclass(eq=False)
class Plan:
    """Steps of a run in order, and what explain shows.

    ``program``: what the graph was made of that is planned; ``writes`` are the state variables that the graph writes.
    ``lines``: one an operator of the program that runs; ``pruned`` counts the others.
    ``state``: by name, whether it is read before it is written.
    ``state_specs``: how the state of the scope was that it was made for.
    ``feed_keys``: by fed name the key of its value; that of a state variable is not the variable's own: what a
    run is fed in its place, and what it then stores there, are two values.
    ``before``: what ran before the first step; ``lines`` and ``moves`` include it.
    ``last_use``: by key the index of the step that uses it last; from the number of steps on: it is used
    after the last one.
    """

    place: Place
    program: Program
    writes: frozenset[str]
    steps: list[Step] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
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
        """State that its steps write, with what it is afterwards; without that of host-run operators."""
        found: dict[str, tuple[Spec, Place]] = {}
        for step in self.steps:
            if isinstance(step, Launch):
                found.update({out.key: (out.spec, step.choice.place) for out in step.outs if out.state})
            elif isinstance(step, Move) and step.into_state:
                found[step.to_key] = (step.spec, step.target)
        return found

    @cached_property
    def own_writes(self) -> frozenset[str]:
        """State that it may write or replace in any way, what follows it not included."""
        controls = [step for step in self.steps if isinstance(step, Control)]
        inside = {out.key for step in controls for outs in step.outs.values() for out in outs if out.state}
        return frozenset(self.written) | inside

    @cached_property
    def own_uses(self) -> dict[str, bool]:
        """State that it uses, what follows it not included, and whether it may write that."""
        return {name: name in self.own_writes for name in (*self.state, *self.own_writes)}

    @cached_property
    def touched(self) -> dict[str, bool]:
        """State that a run of it and of what follows uses, and whether it may write that."""
        return self.own_uses if self.pending is None else self.own_uses | dict.fromkeys(self.writes, True)

    @cached_property
    def queues(self) -> tuple[Place, ...]:
        """The places whose queues a run holds: its own, and those where state lay that it was made for."""
        return tuple(dict.fromkeys((*self.places, *(place for _, place in self.state_specs.values()))))

    @cached_property
    def weight(self) -> int:
        """An estimate of its bytes, for caches; what is prepared for its steps is counted where that is kept."""
        found = 1000 + weight_of(self.feeds)
        for step in self.steps:
            found += 1000
            if isinstance(step, Launch):
                found += step.call.weight + weight_of(step.in_specs)
        return found

    @property
    def known(self) -> bool:
        """Whether all sizes are known now: none is -1, and none depends on values."""
        made = [o.spec for s in self.steps if isinstance(s, Launch) for o in s.outs]
        made += [s.spec for s in self.steps if isinstance(s, Move)]
        return self.pending is None and all(spec.known for spec in (*self.feeds.values(), *made))

    @property
    def moves(self) -> list[Move]:
        """All copies between places, in order."""
        earlier = self.before.moves if self.before is not None else []
        return earlier + [step for step in self.steps if isinstance(step, Move)]
