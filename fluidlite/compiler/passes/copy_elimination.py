"""Copy elimination: readers of a copy read its source."""

from __future__ import annotations

from collections import defaultdict
from math import inf

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass


class EliminateCopies(GraphPass):
    """Readers of a copy read its source, unless the source is overwritten before the last reader of the copy.

    Not eliminated: copies that store state, copies to another place, and copies that are updated in place.
    """

    def do_pass(self, graph: Graph) -> None:
        """Process the operators once, in order, so that a copy of a copy reads the first source."""
        copies = [op for op in graph.ops if op.type == "assign" and _is_local_copy(op)]
        positions = _Positions(graph) if copies else None
        for op in copies:
            source, copy = op.args[0], op.value
            may_replace = copy.state is None and copy.spec == source.spec
            if may_replace and positions is not None and positions.outlives(source, copy):
                graph.replace(copy, source)


def _is_local_copy(op: GraphOp) -> bool:
    return len(op.args) == 1 and len(op.results) == 1 and "op_device" not in op.operator.hints


class _Positions:
    """The positions of operators, and the writers of each name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.at = {id(op): index for index, op in enumerate(graph.ops)}
        self.writers: dict[str, list[tuple[int, GraphValue]]] = defaultdict(list)
        for index, op in enumerate(graph.ops):
            for value in op.results:
                self.writers[value.name].append((index, value))

    def outlives(self, source: GraphValue, copy: GraphValue) -> bool:
        """Whether all readers of a copy run before its source is overwritten, and none updates the copy."""
        last_read, start = -1.0, self.at[id(source.op)] if source.op is not None else -1
        for op in self.graph.readers(copy):
            updated_slots = op.definition.must_alias.values()
            if any(value is copy for slot in updated_slots for value in op.inputs.get(slot, ())):
                return False
            last_read = max(last_read, self.at[id(op)])
        last_read = inf if self.graph.is_result(copy) else last_read
        later = [index for index, value in self.writers[source.name] if index > start and value is not source]
        return not later or last_read < min(later)
