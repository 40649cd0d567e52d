"""Update scheduling: updates run as early as possible, so that the memory of their gradients is reused."""

from __future__ import annotations

from collections import defaultdict

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import READ, GraphOp
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.groups import dependencies


class ScheduleUpdates(GraphPass):
    """Each update of state runs directly after its operands and after the last reader of the old value.

    Optimizers are at the end of a program, where all gradients are live at once. Operators that only the update needs
    (those of role ``"optimize"`` before it: decay, clipping) move with it. All others keep their order. No update moves
    before a control-flow or host-callback operator, which may read anything, or before an operator that checks indices:
    an index error leaves state unchanged.
    """

    phase = "schedule"

    def do_pass(self, graph: Graph) -> None:
        if graph.writes and any(map(_is_update, graph.ops)):
            graph.ops = _Schedule(graph).ordered()
            graph.touch()


def _is_update(op: GraphOp) -> bool:
    return op.has_effect and not op.definition.may_act


class _Schedule:
    """The dependencies between operators, and the operators that may move with updates."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.emitted: set[int] = set()
        self.order: list[GraphOp] = []
        self.before: dict[int, list[GraphOp]] = defaultdict(list)
        after, readers = dependencies(graph)
        for index, later in after.items():
            for each in later:
                self.before[id(graph.ops[each])].append(graph.ops[index])
        self.movable: set[int] = set()
        results = {id(value) for value in graph.results}
        for op in reversed(graph.ops):
            if _is_update(op):
                self.movable.add(id(op))
            elif op.has_effect or any(id(value) in results for value in op.results):
                continue
            elif (op.type == READ or op.role == "optimize") and all(
                id(graph.ops[reader]) in self.movable for value in op.results for reader in readers[id(value)]
            ):
                self.movable.add(id(op))

    def ordered(self) -> list[GraphOp]:
        """Return the operators in order: fixed ones in their old order, updates between them."""
        updates = [(op, *self._private_operands(op)) for op in self.graph.ops if _is_update(op)]
        waiting: dict[int, list[int]] = defaultdict(list)  # by operator: the updates that depend on it
        missing: list[int] = []
        ready: list[int] = []
        for number, (_, _, needs) in enumerate(updates):
            missing.append(len(needs))
            for need in needs:
                waiting[need].append(number)
            if not needs:
                ready.append(number)
        next_ready = 0

        def emit(op: GraphOp) -> None:
            if id(op) in self.emitted:
                return
            self.emitted.add(id(op))
            self.order.append(op)
            for number in waiting.pop(id(op), ()):
                missing[number] -= 1
                if not missing[number]:
                    ready.append(number)

        for op in self.graph.ops:
            if id(op) not in self.movable:
                emit(op)
            while next_ready < len(ready):
                _, moved_ops, _ = updates[ready[next_ready]]
                next_ready += 1
                for moved_op in moved_ops:
                    emit(moved_op)
        for op in self.graph.ops:
            emit(op)
        return self.order

    def _private_operands(self, update: GraphOp) -> tuple[list[GraphOp], set[int]]:
        """The operators that move with an update, in order, and those on which they depend, by identity."""
        inside: dict[int, GraphOp] = {id(update): update}
        needs: set[int] = set()
        queue = [update]
        while queue:
            op = queue.pop()
            for other in self.before[id(op)]:
                if id(other) in inside:
                    continue
                if id(other) in self.movable and not _is_update(other):
                    inside[id(other)] = other
                    queue.append(other)
                else:
                    needs.add(id(other))
        return [op for op in self.graph.ops if id(op) in inside], needs
