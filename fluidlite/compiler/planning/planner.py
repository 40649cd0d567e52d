"""The planner: makes a Plan from a graph and the metadata of feeds and state. It reads and changes no tensor."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import READ, GraphOp, GraphValue
from fluidlite.compiler.planning.move_minimization import Overrides, layout_overrides, moved_bytes, place_overrides
from fluidlite.compiler.planning.operator_steps import OperatorSteps
from fluidlite.compiler.planning.plan import Control, Launch, Pending, Plan, PlanEntry
from fluidlite.compiler.planning.plan_liveness import record_liveness
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

    ``feeds``: by name the spec and the place of the value.
    ``state``: the same of the scope's initialised state variables.
    ``assume_state``: assume that missing state is as declared, on ``place`` (for explain).
    ``inplace``: let outputs overwrite inputs that end; off while observers read both.
    Raises ProgramError, FeedError, FetchError, KernelNotFoundError, ShapeError and others, each with the operator and
    the user's line.
    """
    return _Planner(graph, place, feeds, state, policy, assume_state, inplace).plan()


class _Planner(OperatorSteps):
    """Plans a graph; where sizes depend on values, it ends the plan with a :class:`Pending`."""

    def plan(self) -> Plan:
        self.overrides: Overrides = {}
        self.out.pruned = self.graph.pruned
        plan = self._best_plan(self.graph.operators, 0)
        plan.state_specs = {name: self.state[name] for name in plan.state if name in self.state}
        return plan

    def _best_plan(self, ops: list[GraphOp], start: int) -> Plan:
        """Plan operator by operator, then again with overridden choices; take the plan that moves fewer bytes."""
        initial = self._copy(self.out.before)
        self.tied_choices: dict[int, tuple[Choice, ...]] = {}
        plan = self._plan_from(ops, start)
        entries = plan.lines[len(initial.out.lines) :]
        for overrides_for in (self._layout_overrides, self._place_overrides):
            overrides = overrides_for(entries)
            if not overrides:
                continue
            trial = initial._copy(initial.out.before)
            trial.tied_choices, trial.overrides = {}, {**self.overrides, **overrides}
            other = trial._plan_from(ops, start)
            if moved_bytes(other, self.place, self.host) < moved_bytes(plan, self.place, self.host):
                plan, entries, self.overrides = other, other.lines[len(initial.out.lines) :], trial.overrides
        return plan

    def _layout_overrides(self, entries: list[PlanEntry]) -> Overrides:
        return layout_overrides(entries, self.graph.results, self.tied_choices) if self.tied_choices else {}

    def _place_overrides(self, entries: list[PlanEntry]) -> Overrides:
        return place_overrides(entries, self.graph.results, self.place, self.host, self.policy)

    def _copy(self, before: Plan | None) -> _Planner:
        """A copy of this planner's state, from which another plan is made."""
        planner = copy.copy(self)
        planner.placements = {value: replace(at, copies=dict(at.copies)) for value, at in self.placements.items()}
        planner.state_values, planner.last_reads = dict(self.state_values), dict(self.last_reads)
        planner.keys, planner.numbers = set(self.keys), dict(self.numbers)
        planner.last_use = {}
        planner.out = replace(self.out, before=before)
        planner.out.lines, planner.out.state = list(self.out.lines), dict(self.out.state)
        planner.out.steps, planner.out.fetches, planner.out.places, planner.out.pending = [], [], [], None
        return planner

    def _plan_from(self, ops: list[GraphOp], start: int) -> Plan:
        """Plan the operators from an index to the end, or to the first size that depends on values."""
        for self.at in range(start, len(ops)):
            op = ops[self.at]
            definition = op.definition
            unknown_values = self._unknown_values(op) if definition.stated or definition.tables else []
            if unknown_values:
                self._pause(ops[self.at :], self.at, unknown_values, [])
                return self._completed(ops[self.at :])
            self._plan_operator(op)
            later = ops[self.at + 1 :] if definition.dynamic else []
            if later:
                written = [value for value in op.results if value in self.placements]
                open_dims = [value for value in written if self._is_open(self.placements[value].spec)]
                if open_dims and not self.assume_state:
                    self._pause(later, self.at + 1, [], open_dims)
                    return self._completed(later)
        for name, value in zip(self.graph.fetches, self.graph.results, strict=True):
            placement = self._placement(value, fetching=True)
            key = placement.key if placement.spec.layout is PLAIN else self._key_at(value, placement.place)
            self.out.fetches.append((name, key, placement.place, placement.spec.with_(layout=PLAIN)))
        for _, key, _, _ in self.out.fetches:  # after the last move that a fetch adds
            self._record_use(key)
        return self._completed([])

    @staticmethod
    def _is_open(spec: Spec) -> bool:
        """Whether the dims of a value, or its LoD, are determined by the run itself."""
        return not spec.is_static or (spec.lod_level > len(spec.lod) and spec.kind != TENSOR_ARRAY)

    def _completed(self, later: Sequence[GraphOp]) -> Plan:
        """Complete this plan with its places and with liveness; ``later``: the operators of its continuation."""
        places = {self.place, *(place for move in self.out.moves for place in (move.source, move.target))}
        for step in self.out.steps:
            if isinstance(step, Launch):
                places.add(step.choice.place)
            elif isinstance(step, Control):
                places.add(self.host)
        places |= {place for _, _, place, _ in self.out.fetches}
        if later:  # a run takes all locks when it begins
            places |= {self.host, *(devices.unit(at).place for op in later if (at := op.hints.get("op_device")))}
        if self.out.before is not None:
            places |= set(self.out.before.places)
        self.out.places = sorted(places, key=str)
        for step in self.out.steps:
            if isinstance(step, Launch):
                step.where = self.out.places.index(step.choice.place)
                plain = not step.skip and step.random is None and None not in step.ins
                plain = plain and not step.layout_agnostic and not step.writes_state
                step.simple = plain and all([o.shares < 0 and not o.state and o.spec.is_static for o in step.outs])
        record_liveness(self.out, self.last_use, self.inplace)
        return self.out

    # Values on which sizes depend

    def _unknown_values(self, op: GraphOp) -> list[GraphValue]:
        """The inputs whose numbers an operator takes as metadata, and that are not known yet."""
        definition = op.definition
        slots = (*definition.stated, *definition.tables)
        if self.assume_state:  # explain: dims stay open
            return []
        return [value for slot in slots for value in op.inputs.get(slot, ()) if value not in self.numbers]

    def _pause(self, later: list[GraphOp], at: int, values: list[GraphValue], dims: list[GraphValue]) -> None:
        """End this plan before the operator ``at``; the continuation is planned when values and dims are known."""
        value_keys = {value: self._key_at(value, self.host, why="value") for value in dict.fromkeys(values)}
        dims_keys = {value: self.placements[value].key for value in dims}
        needed = dict.fromkeys((*(arg for op in later for arg in op.args), *self.graph.results))
        for value in needed:
            if value.op is not None and value.op.type == READ and value.name in self.state:
                self._placement(value)  # the whole run reads the scope once, when it begins
        for value in needed:  # after the last move
            placement = self.placements.get(value)
            for key in (placement.key, *placement.copies.values()) if placement is not None else ():
                self._record_use(key)
        for key in (*value_keys.values(), *dims_keys.values()):
            self._record_use(key)

        def resume(numbers: Mapping[GraphValue, tuple[Any, ...]], specs: Mapping[GraphValue, Spec]) -> Plan:
            planner = self._copy(self.out)
            for value, spec in specs.items():
                planner.placements[value].spec = spec
            planner.numbers.update(numbers)
            return planner._best_plan(self.graph.operators, at)

        self.out.pending = Pending(value_keys, dims_keys, resume)
