"""Updates run as soon as they can, so that a gradient's memory serves the next one."""

from __future__ import annotations

from collections import defaultdict

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import READ, GraphOp
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.groups import dependencies


class ScheduleUpdates(GraphPass):
    """An update of state runs once what it needs is there, and the last reader of the old value is done.

    Optimizers stand at the end of a program, where all gradients live at once. What an update needs of its own (the
    operators of role ``"optimize"`` before it: decay, clipping) moves with it. All else stays in its order, and
    nothing moves past an operator that runs itself, which may look at anything, or past one that may find an index out
    of range: what is stored then stays as it was.
    """

    phase = "schedule"

    def do_pass(self, graph: Graph) -> None:
        if graph.writes and any(map(_is_update, graph.ops)):
            graph.ops = _Order(graph).ordered()
            graph.touch()


def _is_update(op: GraphOp) -> bool:
    return op.has_effect and not op.definition.may_act


class _Order:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.done: set[int] = set()
        self.out: list[GraphOp] = []
        self.before: dict[int, list[GraphOp]] = defaultdict(list)
        for index, later in dependencies(graph)[0].items():
            for each in later:
                self.before[id(graph.ops[each])].append(graph.ops[index])
        consumers: dict[int, list[GraphOp]] = defaultdict(list)
        for op in graph.ops:
            for value in op.args:
                consumers[id(value)].append(op)
        self.movable: set[int] = set()
        results = {id(value) for value in graph.results}
        for op in reversed(graph.ops):
            if _is_update(op):
                self.movable.add(id(op))
            elif op.has_effect or any(id(value) in results for value in op.results):
                continue
            elif (op.type == READ or op.role == "optimize") and all(
                id(reader) in self.movable for value in op.results for reader in consumers[id(value)]
            ):
                self.movable.add(id(op))

    def ordered(self) -> list[GraphOp]:
        """Return the operators: those that do not move as they stand, updates between them."""
        updates = [(op, *self._cone(op)) for op in self.graph.ops if _is_update(op)]
        waiting: dict[int, list[int]] = defaultdict(list)  # by operator: the updates that wait for it
        missing: list[int] = []
        ready: list[int] = []
        for number, (_, _, needs) in enumerate(updates):
            missing.append(len(needs))
            for need in needs:
                waiting[need].append(number)
            if not needs:
                ready.append(number)
        place = 0

        def put(op: GraphOp) -> None:
            if id(op) in self.done:
                return
            self.done.add(id(op))
            self.out.append(op)
            for number in waiting.pop(id(op), ()):
                missing[number] -= 1
                if not missing[number]:
                    ready.append(number)

        for op in self.graph.ops:
            if id(op) not in self.movable:
                put(op)
            while place < len(ready):
                _, cone, _ = updates[ready[place]]
                place += 1
                for part in cone:
                    put(part)
        for op in self.graph.ops:
            put(op)
        return self.out

    def _cone(self, update: GraphOp) -> tuple[list[GraphOp], set[int]]:
        """What moves with an update, in order, and by identity what has to be there before."""
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
