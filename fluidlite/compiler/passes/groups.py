"""Groups of a graph's operators, each to run as one: what has to run before what, and what may not come between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphValue
from fluidlite.compiler.ir.order import least_first
from fluidlite.compiler.passes.index_check_order import index_checks


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
    found = least_first(follows, last.values())
    assert len(found) == len({*last.values()})  # groups are convex
    return found
