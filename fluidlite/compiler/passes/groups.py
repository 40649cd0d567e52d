"""Partitions of a graph's operators into convex groups: dependencies, convexity, and the schedule of groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain

from fluidlite.base.errors import FluidError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue, declared_specs
from fluidlite.compiler.ir.order import topological_order
from fluidlite.program import codegen_registry as generators
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD


class Groups:
    """A partition of a graph's operators, by index; initially one group for each operator.

    ``at``: the index of each operator.
    ``after``: by operator, those that must run after it.
    ``group``: by operator, its group.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.at = {id(op): index for index, op in enumerate(graph.ops)}
        self.after, self.readers = dependencies(graph)
        self.results = {id(value) for value in graph.results}
        self.group: dict[int, frozenset[int]] = {index: frozenset((index,)) for index in range(len(graph.ops))}

    def join(self, group: frozenset[int]) -> None:
        for each in group:
            self.group[each] = group

    def fused_groups(self) -> list[frozenset[int]]:
        """The groups of two or more operators."""
        return sorted({group for group in self.group.values() if len(group) > 1}, key=max)

    def is_live_out(self, value: GraphValue, group: frozenset[int]) -> bool:
        """Whether a value of a group is live after it: state, a result, or read outside."""
        return value.state is not None or id(value) in self.results or not group.issuperset(self.readers[id(value)])

    def is_split(self, group: frozenset[int]) -> bool:
        """Whether a group is not convex: an operator outside depends on one member, and another member on it."""
        last = max(group)
        visited: set[int] = set(group)
        waiting = [later for index in group for later in self.after[index] if later not in group]
        while waiting:
            index = waiting.pop()
            if index in visited:
                continue
            for each in self.group[index]:  # a group runs as one
                visited.add(each)
                if each > last:
                    continue
                for later in self.after[each]:
                    if later in group:
                        return True
                    if later not in visited and min(self.group[later]) < last:
                        waiting.append(later)
        return False


def dependencies(graph: Graph) -> tuple[dict[int, set[int]], dict[int, list[int]]]:
    """By operator's index, the operators that must run after it; and by value, its readers.

    A reader runs after the writer of its value, and before the name is overwritten. Operators with other effects
    (print) keep their order, also with respect to those that write state.
    """
    after: dict[int, set[int]] = {index: set() for index in range(len(graph.ops))}
    maker: dict[int, int] = {}
    current: dict[str, GraphValue] = {}
    readers: dict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(graph.ops):
        for value in chain.from_iterable(op.inputs.values()):
            if id(value) in maker:
                after[maker[id(value)]].add(index)
            current.setdefault(value.name, value)
            readers[id(value)].append(index)
        for value in filter(None, chain.from_iterable(op.outputs.values())):
            old = current.get(value.name)
            if old is not None and old is not value:
                earlier = [*readers[id(old)], *([maker[id(old)]] if id(old) in maker else [])]
                for each in earlier:
                    if each != index:
                        after[each].add(index)
            current[value.name] = value
            maker[id(value)] = index
    _order_effects(graph, after)
    return after, readers


def _order_effects(graph: Graph, after: dict[int, set[int]]) -> None:
    """Keep the state that an error leaves: no write of state moves before an operator that may raise it."""
    effects = [(graph.writes or op.definition.may_act) and op.has_effect for op in graph.ops]
    if not any(effects):
        return
    checking = index_checks(graph)
    checks: list[int] = []  # operators that may raise an index error
    writes: list[int] = []  # writes of state since the barrier
    barrier: int | None = None
    for index, op in enumerate(graph.ops):
        if effects[index]:
            for each in checks if barrier is None else (*checks, barrier):
                after[each].add(index)
            if op.definition.may_act:
                for each in writes:
                    after[each].add(index)
                barrier, writes = index, []
            else:
                writes.append(index)
        if id(op) in checking:
            checks.append(index)


def scheduled(after: Mapping[int, set[int]], groups: Mapping[int, frozenset[int]]) -> list[int]:
    """The last operators of all groups in topological order, as close to program order as possible."""
    last = {index: max(group) for index, group in groups.items()}
    follows: dict[int, set[int]] = defaultdict(set)
    for index, later in after.items():
        for each in later:
            if last[each] != last[index]:
                follows[last[index]].add(last[each])
    order = topological_order(follows, last.values())
    assert len(order) == len({*last.values()})  # no cycles, as groups are convex
    return order


_GRADIENT = "_grad"


def index_checks(graph: Graph) -> set[int]:
    """By identity, the operators whose kernels check indices that no operator before has checked.

    A gradient operator reads indices that its forward operator has checked, if that one has not been removed.
    """
    checking: set[int] = set()
    checked: dict[str, list[set[tuple[str, int]]]] = defaultdict(list)
    for op in graph.ops:
        if not _checks_indices(op):
            continue
        reads = {(slot, id(value)) for slot, values in op.inputs.items() if not slot.endswith(GRAD) for value in values}
        if not any(reads <= other for other in checked[op.type.removesuffix(_GRADIENT)]):
            checking.add(id(op))
        makes = {(slot, id(value)) for slot, values in op.outputs.items() for value in values}
        checked[op.type].append(reads | makes)
    return checking


def _checks_indices(op: GraphOp) -> bool:
    """Whether a kernel of an operator, registered or generated, checks indices."""
    if any(kernel.indexes for kernel in kernels.of(op.type)):
        return True
    definition = op.definition
    if definition.expression is None:
        return False
    ins = declared_specs(op.inputs)
    if op.index_check is None or op.index_check[:2] != (ins, op.attrs):
        try:
            checks = generators.checks_indices(Call(definition, ins, {}, op.attrs))
        except FluidError:  # it cannot run: the planner raises the error
            checks = False
        op.index_check = ins, dict(op.attrs), checks
    return op.index_check[2]
