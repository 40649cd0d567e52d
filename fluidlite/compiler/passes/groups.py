"""Groups of a graph's operators, each to run as one: what has to run before what, and what may not come between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain

from fluidlite.base.errors import FluidError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue, declared
from fluidlite.compiler.ir.order import topological_order
from fluidlite.program import codegen_registry as generators
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD


class Groups:
    """A partition of a graph's operators, by index; in the beginning each is alone.

    ``at``: the index of each operator.
    ``after``: by operator: those that must run after it.
    ``group``: the group of each operator.
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

    def joined(self) -> list[frozenset[int]]:
        """The groups of two or more."""
        return sorted({group for group in self.group.values() if len(group) > 1}, key=max)

    def leaves(self, value: GraphValue, group: frozenset[int]) -> bool:
        """Whether something outside a group wants a value of it."""
        return value.state is not None or id(value) in self.results or not group.issuperset(self.readers[id(value)])

    def between(self, group: frozenset[int]) -> bool:
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


def dependencies(graph: Graph) -> tuple[dict[int, set[int]], dict[int, list[int]]]:
    """By operator's index: those that must run after it; and by value: those that read it.

    What reads a value runs after what makes it, and before the name is written anew. Operators that do something
    besides (print) stay in order among each other, and among those that write state.
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
    _keep_effects(graph, after)
    return after, readers


def _keep_effects(graph: Graph, after: dict[int, set[int]]) -> None:
    """Let an error leave what it would leave as the program is written: no state is written that comes after it."""
    effects = [(graph.writes or op.definition.may_act) and op.has_effect for op in graph.ops]
    if not any(effects):
        return
    looking = index_checks(graph)
    before: list[int] = []  # what may find an index out of range
    writes: list[int] = []  # since an operator that runs itself
    itself: int | None = None
    for index, op in enumerate(graph.ops):
        if effects[index]:
            for each in before if itself is None else (*before, itself):
                after[each].add(index)
            if op.definition.may_act:
                for each in writes:
                    after[each].add(index)
                itself, writes = index, []
            else:
                writes.append(index)
        if id(op) in looking:
            before.append(index)


def scheduled(after: Mapping[int, set[int]], groups: Mapping[int, frozenset[int]]) -> list[int]:
    """Groups, each by its last operator, in an order in which they can run, as near as can be to that of these."""
    last = {index: max(group) for index, group in groups.items()}
    follows: dict[int, set[int]] = defaultdict(set)
    for index, later in after.items():
        for each in later:
            if last[each] != last[index]:
                follows[last[index]].add(last[each])
    found = topological_order(follows, last.values())
    assert len(found) == len({*last.values()})  # groups are convex
    return found


_GRADIENT = "_grad"


def index_checks(graph: Graph) -> set[int]:
    """By identity: the operators whose kernels look at indices that no operator before has looked at.

    A gradient reads the indices of its operator, which found them in range, if that one is still there.
    """
    found: set[int] = set()
    looked: dict[str, list[set[tuple[str, int]]]] = defaultdict(list)
    for op in graph.ops:
        if not _looks(op):
            continue
        reads = {(slot, id(value)) for slot, values in op.inputs.items() if not slot.endswith(GRAD) for value in values}
        if not any(reads <= other for other in looked[op.type.removesuffix(_GRADIENT)]):
            found.add(id(op))
        makes = {(slot, id(value)) for slot, values in op.outputs.items() for value in values}
        looked[op.type].append(reads | makes)
    return found


def _looks(op: GraphOp) -> bool:
    """Whether a kernel of an operator, or the one that is generated for its expression, checks indices."""
    if any(kernel.indexes for kernel in kernels.of(op.type)):
        return True
    definition = op.definition
    if definition.expression is None:
        return False
    ins = declared(op.inputs)
    if op.index_check is None or op.index_check[:2] != (ins, op.attrs):
        try:
            looks = generators.checks_indices(Call(definition, ins, {}, op.attrs))
        except FluidError:  # it cannot run, and says so when it is planned
            looks = False
        op.index_check = ins, dict(op.attrs), looks
    return op.index_check[2]
