"""The one planner: from a graph, feeds and state to a Plan. Pure: it looks at metadata only."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import READ, GraphOp, GraphValue
from fluidlite.compiler.planning.least_moves import Picked, better_layouts, better_places, moved_bytes
from fluidlite.compiler.planning.operator_steps import OperatorSteps
from fluidlite.compiler.planning.plan import Control, Launch, Line, Pending, Plan
from fluidlite.compiler.planning.plan_liveness import finish_lifetimes
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.tensor.layout import PLAIN
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec


def plan_graph(
    graph: Graph,
    place: Place,
    feeds: Mapping[str, tuple[Spec, Place]],
    state: Mapping[str, tuple[Spec, Place]],
    policy: Policy,
    assume_state: bool = False,
    inplace: bool = True,
) -> Plan:
    """Plan one run of a graph.

    ``feeds``: by name the spec, and where the value is.
    ``state``: the scope's initialised state variables.
    ``assume_state``: take state that is missing as declared and at home (for explain).
    ``inplace``: let outputs take the memory of inputs that end; off while observers want to see both.
    Raises ProgramError, FeedError, FetchError, KernelNotFoundError, ShapeError and others, each with the operator and
    the user's line.
    """
    return _Planner(graph, place, feeds, state, policy, assume_state, inplace).plan()


class _Planner(OperatorSteps):
    def plan(self) -> Plan:
        self.picked: Picked = {}  # what was chosen for the sake of the whole plan
        self.out.pruned = self.graph.pruned
        plan = self._best_plan(self.graph.operators, 0)
        plan.state_specs = {name: self.state[name] for name in plan.state if name in self.state}
        return plan

    def _best_plan(self, ops: list[GraphOp], start: int) -> Plan:
        """Plan operator by operator; and once more with other choices, where those move fewer bytes."""
        again = self._copy(self.out.before)
        self.options: dict[int, tuple[Choice, ...]] = {}
        plan = self._plan_from(ops, start)
        lines = plan.lines[len(again.out.lines) :]
        for better in (self._better_layouts, self._better_places):
            picked = better(lines)
            if not picked:
                continue
            trial = again._copy(again.out.before)
            trial.options, trial.picked = {}, {**self.picked, **picked}
            other = trial._plan_from(ops, start)
            if moved_bytes(other, self.home, self.host) < moved_bytes(plan, self.home, self.host):
                plan, lines, self.picked = other, other.lines[len(again.out.lines) :], trial.picked
        return plan

    def _better_layouts(self, lines: list[Line]) -> Picked:
        return better_layouts(lines, self.graph.results, self.options) if self.options else {}

    def _better_places(self, lines: list[Line]) -> Picked:
        return better_places(lines, self.graph.results, self.home, self.host, self.policy)

    def _copy(self, before: Plan | None) -> _Planner:
        """A planner that knows what this one knows now."""
        again = copy.copy(self)
        again.known = {value: replace(known, copies=dict(known.copies)) for value, known in self.known.items()}
        again.held, again.last_reads, again.keys = dict(self.held), dict(self.last_reads), set(self.keys)
        again.values = dict(self.values)
        again.last_use = {}
        again.out = replace(self.out, before=before)
        again.out.lines, again.out.state = list(self.out.lines), dict(self.out.state)
        again.out.steps, again.out.fetches, again.out.places, again.out.pending = [], [], [], None
        return again

    def _plan_from(self, ops: list[GraphOp], start: int) -> Plan:
        for self.at in range(start, len(ops)):
            op = ops[self.at]
            definition = op.definition
            unknown = self._unknown_values(op) if definition.stated or definition.tables else []
            if unknown:
                self._pause(ops[self.at :], self.at, unknown, [])
                return self._finished(ops[self.at :])
            self._step(op)
            later = ops[self.at + 1 :] if definition.dynamic else []
            if later:
                open_dims = [each for each in op.results if each in self.known and self._is_open(self.known[each].spec)]
                if open_dims and not self.assume_state:
                    self._pause(later, self.at + 1, [], open_dims)
                    return self._finished(later)
        for name, value in zip(self.graph.fetches, self.graph.results, strict=True):
            found = self._find(value, fetching=True)
            key = found.key if found.spec.layout is PLAIN else self._at(value, found.place)
            self.out.fetches.append((name, key, found.place, found.spec.with_(layout=PLAIN)))
        for _, key, _, _ in self.out.fetches:  # once no fetch moves anything any more
            self._use(key)
        return self._finished([])

    @staticmethod
    def _is_open(spec: Spec) -> bool:
        """Whether the run itself finds the dims of a value, or its LoD."""
        return not spec.known or (spec.lod_level > len(spec.lod) and spec.kind != TENSOR_ARRAY)

    def _finished(self, later: Sequence[GraphOp]) -> Plan:
        """Complete this plan: which places it needs, and when values end; ``later`` is what a further plan runs."""
        places = {self.home, *(place for move in self.out.moves for place in (move.source, move.target))}
        for step in self.out.steps:
            if isinstance(step, Launch):
                places.add(step.choice.place)
            elif isinstance(step, Control):
                places.add(self.host)
        places |= {place for _, _, place, _ in self.out.fetches}
        if later:  # all locks are taken when the run begins
            places |= {self.host, *(devices.unit(at).place for op in later if (at := op.hints.get("op_device")))}
        if self.out.before is not None:
            places |= set(self.out.before.places)
        self.out.places = sorted(places, key=str)
        for step in self.out.steps:
            if isinstance(step, Launch):
                step.where = self.out.places.index(step.choice.place)
                plain = not step.skip and step.random is None and None not in step.ins
                plain = plain and not step.blind and not step.writes_state
                step.simple = plain and all([o.shares < 0 and not o.state and o.spec.known for o in step.outs])
        finish_lifetimes(self.out, self.last_use, self.inplace)
        return self.out

    # Values that sizes depend on

    def _unknown_values(self, op: GraphOp) -> list[GraphValue]:
        """The values whose numbers an operator takes as metadata, and that are not known yet."""
        definition = op.definition
        slots = (*definition.stated, *definition.tables)
        if self.assume_state:  # explain: dims stay open
            return []
        return [value for slot in slots for value in op.inputs.get(slot, ()) if value not in self.values]

    def _pause(self, later: list[GraphOp], at: int, values: list[GraphValue], dims: list[GraphValue]) -> None:
        """End this plan in front of an operator; the rest is planned when values, or dims, are known."""
        asked = {value: self._at(value, self.host, why="value") for value in dict.fromkeys(values)}
        found = {value: self.known[value].key for value in dims}
        needed = dict.fromkeys((*(arg for op in later for arg in op.args), *self.graph.results))
        for value in needed:
            if value.op is not None and value.op.type == READ and value.name in self.state:
                self._find(value)  # what the whole run reads of the scope is taken when it begins
        for value in needed:  # once nothing is moved any more
            known = self.known.get(value)
            for key in (known.key, *known.copies.values()) if known is not None else ():
                self._use(key)
        for key in (*asked.values(), *found.values()):
            self._use(key)

        def resume(numbers: Mapping[GraphValue, tuple[Any, ...]], specs: Mapping[GraphValue, Spec]) -> Plan:
            again = self._copy(self.out)
            for value, spec in specs.items():
                again.known[value].spec = spec
            again.values.update(numbers)
            return again._best_plan(self.graph.operators, at)

        self.out.pending = Pending(asked, found, resume)
