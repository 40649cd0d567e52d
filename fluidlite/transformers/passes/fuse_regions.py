"""Which operators of a graph are fused: groups that work on the same elements, and that nothing has to run between."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fluidlite.base.errors import FluidError
from fluidlite.codegen.domain import Domain, domain_of
from fluidlite.codegen.fused_twins import elementwise_twin
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.framework.call import Call
from fluidlite.framework.choose import GENERATED_FOR, after_plain
from fluidlite.framework.generators import generators
from fluidlite.framework.kernels import CAPABILITIES, kernels, matches
from fluidlite.framework.opdef import OpDef
from fluidlite.framework.policy import Policy
from fluidlite.framework.refusals import device_veto, refuse
from fluidlite.framework.spec import Dims
from fluidlite.platform.devices import Unit
from fluidlite.transformers.passes.checks import index_checks
from fluidlite.transformers.passes.fuse_dims import GenericDims
from fluidlite.transformers.values import Graph, GraphOp, GraphValue

MOST_OPERATORS = 128
"""Operators of one kernel: compilers take more than linear time."""
MOST_VARIABLES = 24
"""Values that one kernel loads and stores: each is an address, and often a register."""
MOST_NUMBERS = 48
"""Float attributes and constants of one kernel: each is an argument."""


@dataclass(eq=False)
class Member:
    """An operator that can be fused.

    Attributes
    ----------
    op : GraphOp
    definition : OpDef
        Its own, or one that says it element by element.
    call : Call
        With generic dims.
    code : Typed
    domain : Domain
        The elements that it works on, where its operands and outputs lie among them, and which of these are sums.
    device : str or None
        Where the user put it.
    """

    op: GraphOp
    definition: OpDef
    call: Call
    code: Typed
    domain: Domain
    device: str | None

    @property
    def inputs(self) -> dict[str, GraphValue]:
        """Its inputs by slot; those of a slot that takes several are ``X[0]``, ``X[1]``, ..."""
        return _flat(self.op, self.definition)

    @property
    def outputs(self) -> dict[str, GraphValue]:
        """Its outputs that somebody wants, by slot."""
        return {slot: values[0] for slot, values in self.op.outputs.items() if values[0] is not None}

    def reads(self) -> list[tuple[str, GraphValue]]:
        """What it reads the elements of."""
        return [(slot, value) for slot, value in self.inputs.items() if slot in self.code.inputs]

    def wants(self, slots: Sequence[str]) -> None:
        """Leave all outputs but these out of its call and code."""
        outs = {slot: specs for slot, specs in self.call.outs.items() if slot in slots}
        self.call = self.call.with_outs(outs)
        self.code, self.domain = typed_of(self.call), domain_of(self.call)

    @property
    def placed(self) -> Mapping[str, Dims]:
        """Where the operands and the outputs lie in the domain."""
        return self.domain.placed

    @property
    def summed(self) -> Mapping[str, tuple[int, ...]]:
        """The outputs that add up elements, and along which axes."""
        return self.domain.sums

    @property
    def numbers(self) -> int:
        """How many arguments its float attributes are, at most."""
        return len(self.code.scalars)


def member_of(op: GraphOp, dims: GenericDims, unit: Unit, preferences: Policy) -> Member | None:
    """The operator as a member of a group, or None if it is to run on its own."""
    if op.operator is None:
        return None
    own = op.operator.definition
    if "op_library" in op.operator.hints or own.host_only or own.dynamic or own.effect or own.run is not None:
        return None
    definition = own if own.scalar is not None else elementwise_twin(own, len(op.args))
    if definition is None or definition.scalar is None or definition.scalar.steps > 1:
        return None
    given = _flat(op, definition)
    if len(given) != len(op.args) or any(len(values) != 1 for values in op.outputs.values()):
        return None
    if any((slot := definition.input(name)) is None or slot.value or slot.on_host for name in given):
        return None
    if any((slot := definition.output(name)) is None or slot.on_host for name in op.outputs):
        return None
    ins, outs = dims.specs(given), dims.specs({s: v for s, (v,) in op.outputs.items() if v is not None})
    if ins is None or not outs:
        return None
    call = Call(definition, ins, outs, op.attrs)
    if not _generated(call, definition is not own, unit, preferences) or _vetoed(op, own, unit):
        return None
    try:
        code, domain = typed_of(call), domain_of(call)
    except FluidError:  # its dims fit nothing known: it is left as it is, and says so when it runs
        return None
    return Member(op, definition, call, code, domain, op.operator.hints.get("op_device"))


def _vetoed(op: GraphOp, definition: OpDef, unit: Unit) -> bool:
    """Whether the device refuses the operator; as part of a fused one it would not see it."""
    if unit.supports is None:
        return False
    ins, outs = (
        {slot: tuple(value.spec for value in values if value is not None and value.spec is not None)
         for slot, values in slots.items() if values != [None]}
        for slots in (op.inputs, op.outputs)
    )  # fmt: skip
    return device_veto(Call(definition, ins, outs, op.attrs), unit) is not None


def _flat(op: GraphOp, definition: OpDef) -> dict[str, GraphValue]:
    if definition.input(next(iter(op.inputs), "")) is None:  # a twin, whose slots are one for each
        return {f"{slot}[{k}]": value for slot, values in op.inputs.items() for k, value in enumerate(values)}
    return {slot: values[0] for slot, values in op.inputs.items() if values}


def _generated(call: Call, twin: bool, unit: Unit, preferences: Policy) -> bool:
    """Whether the place would generate a kernel for this call, and has none of a library that it prefers."""
    able = [
        name for name in GENERATED_FOR
        if getattr(unit, name) is not None and name in generators and name not in preferences.exclude
        and not (name == "dialect" and preferences.capability(unit.place.kind) == "array")
    ]  # fmt: skip
    if "generated" in preferences.exclude or all(generators[name].refuse(call, unit) is not None for name in able):
        return False
    if twin:
        return True
    for kernel in kernels.of(call.op.type):
        native = not set(kernel.places) & set(CAPABILITIES)
        native = native and any(matches(place, unit.place.kind) for place in kernel.places)
        if native and not after_plain(kernel, unit.place.kind, preferences) and refuse(kernel, call, unit) is None:
            return False
    return True


class Regions:
    """Groups of a graph's members: greedily, in the order in which the operators run."""

    def __init__(self, graph: Graph, members: Mapping[int, Member]) -> None:
        self.graph = graph
        self.members = members
        self.at = {id(op): index for index, op in enumerate(graph.ops)}
        self.after = dependencies(graph)
        self.readers: dict[int, list[int]] = defaultdict(list)
        for index, op in enumerate(graph.ops):
            for value in op.args:
                self.readers[id(value)].append(index)
        self.results = {id(value) for value in graph.results}
        self.group: dict[int, frozenset[int]] = {index: frozenset((index,)) for index in range(len(graph.ops))}

    def grow(self) -> list[list[Member]]:
        """Join what can be joined; return the groups of two or more, each in order."""
        for index, op in enumerate(self.graph.ops):
            member = self.members.get(id(op))
            if member is None:
                continue
            makers = {self.at[id(value.op)] for _, value in member.reads() if value.op is not None}
            for maker in sorted(makers, reverse=True):
                first = self.members.get(id(self.graph.ops[maker]))
                if first is None or first.summed or self.group[maker] is self.group[index]:
                    continue
                joined = self.group[maker] | self.group[index]
                if self._fit(joined) and not self._between(joined):
                    for each in joined:
                        self.group[each] = joined
        groups = {group for group in self.group.values() if len(group) > 1}
        return [self._of(group) for group in sorted(groups, key=max)]

    def _of(self, group: Iterable[int]) -> list[Member]:
        return [self.members[id(self.graph.ops[index])] for index in sorted(group)]

    def leaves(self, value: GraphValue, group: frozenset[int]) -> bool:
        """Whether something outside a group wants a value of it."""
        if value.state is not None or id(value) in self.results:
            return True
        return any(index not in group for index in self.readers[id(value)])

    def _fit(self, group: frozenset[int]) -> bool:
        """Whether operators can be one kernel: the same elements, and not too much of anything."""
        members = self._of(group)
        first = members[0]
        if len(members) > MOST_OPERATORS or any(
            member.domain.dims != first.domain.dims or member.device != first.device for member in members
        ):
            return False
        if sum(member.definition.random for member in members) > 1:
            return False
        made = {id(value): (m, slot) for m in members for slot, value in m.outputs.items()}
        loaded: set[tuple[int, Dims]] = set()
        constants: set[tuple[int, Dims]] = set()
        for member in members:
            for slot, value in member.reads():
                maker = made.get(id(value))
                if maker is None:
                    (constants if is_number(value) else loaded).add((id(value), member.placed[slot]))
                elif maker[0].placed[maker[1]] != member.placed[slot] or slot in member.definition.must_alias.values():
                    return False
        stored = [value for m in members for value in m.op.results if self.leaves(value, group)]
        if len({value.name for value in stored}) < len(stored):
            return False
        if len(stored) > 1 and any(member.summed for member in members):
            return False  # each would be a kernel, and compute what leads to both again
        numbers = len(constants) + sum(member.numbers for member in members)
        return len(loaded) + len(stored) <= MOST_VARIABLES and numbers <= MOST_NUMBERS

    def _between(self, group: frozenset[int]) -> bool:
        """Whether something outside has to run after one of a group and before another."""
        last = max(group)
        seen: set[int] = set(group)
        waiting = [later for index in group for later in self.after[index] if later not in group]
        while waiting:
            index = waiting.pop()
            if index in seen:
                continue
            for each in self.group[index]:  # a group runs at once: what follows any of it follows all
                seen.add(each)
                if each > last:
                    continue
                for later in self.after[each]:
                    if later in group:
                        return True
                    if later not in seen and min(self.group[later]) < last:
                        waiting.append(later)
        return False


def is_number(value: GraphValue) -> bool:
    """Whether a value is one number, known now, however many elements it has."""
    return value.is_constant and value.spec is not None and value.spec.known and value.op is not None and (
        not value.op.attrs["str_value"]
    )  # fmt: skip


def dependencies(graph: Graph) -> dict[int, set[int]]:
    """By operator's index: those that must run after it.

    What reads a value runs after what makes it, and before the name is written anew. Operators that do something
    besides (print) stay in order among each other, and among those that write state.
    """
    after: dict[int, set[int]] = {index: set() for index in range(len(graph.ops))}
    maker: dict[int, int] = {}
    current: dict[str, GraphValue] = {}
    readers: dict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(graph.ops):
        for value in op.args:
            if id(value) in maker:
                after[maker[id(value)]].add(index)
            current.setdefault(value.name, value)
            readers[id(value)].append(index)
        for value in op.results:
            old = current.get(value.name)
            if old is not None and old is not value:
                earlier = [*readers[id(old)], *([maker[id(old)]] if id(old) in maker else [])]
                for each in earlier:
                    if each != index:
                        after[each].add(index)
            current[value.name] = value
            maker[id(value)] = index
    _keep_effects(graph, after)
    return after


def _keep_effects(graph: Graph, after: dict[int, set[int]]) -> None:
    """Let an error leave what it would leave as the program is written: no state is written that comes after it."""
    looking = index_checks(graph)
    before: list[int] = []  # what may find an index out of range
    writes: list[int] = []  # since an operator that runs itself
    itself: int | None = None
    for index, op in enumerate(graph.ops):
        if op.has_effect:
            for each in before if itself is None else (*before, itself):
                after[each].add(index)
            definition = op.operator.definition if op.operator is not None else None
            if definition is not None and (definition.run is not None or definition.effect):
                for each in writes:
                    after[each].add(index)
                itself, writes = index, []
            else:
                writes.append(index)
        if id(op) in looking:
            before.append(index)


def scheduled(after: Mapping[int, set[int]], groups: Mapping[int, frozenset[int]]) -> list[frozenset[int]]:
    """Groups in an order in which they can run, as near as can be to the order in which their last operators did."""
    before: dict[frozenset[int], int] = dict.fromkeys(groups.values(), 0)
    follows: dict[frozenset[int], set[frozenset[int]]] = {group: set() for group in before}
    for index, later in after.items():
        for each in later:
            if groups[each] is not groups[index]:
                follows[groups[index]].add(groups[each])
    for targets in follows.values():
        for group in targets:
            before[group] += 1
    ready = [(max(group), group) for group, missing in before.items() if not missing]
    heapq.heapify(ready)
    found = []
    while ready:
        _, group = heapq.heappop(ready)
        found.append(group)
        for later_group in follows[group]:
            before[later_group] -= 1
            if not before[later_group]:
                heapq.heappush(ready, (max(later_group), later_group))
    assert len(found) == len(before)  # groups are convex
    return found
