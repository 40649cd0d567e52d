"""Copies that nobody needs."""

from __future__ import annotations

from collections import defaultdict
from math import inf

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass


class EliminateCopies(GraphPass):
    """Who reads a copy reads what it was made of, where that is not overwritten while the copy is read.

    What stores state stays, and so does a copy to another place, and one that an operator updates in place.
    """

    def do_pass(self, graph: Graph) -> None:
        """Go through the operators once, in order: a copy of a copy reads the first by then."""
        copies = [op for op in graph.ops if op.type == "assign" and _plain(op)]
        places = _Places(graph) if copies else None
        for op in copies:
            source, made = op.args[0], op.value
            if places is not None and made.state is None and made.spec == source.spec and places.lives(source, made):
                graph.replace(made, source)


def _plain(op: GraphOp) -> bool:
    return len(op.args) == 1 and len(op.results) == 1 and "op_device" not in op.operator.hints


class _Places:
    """Where operators stand, and who writes which name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.at = {id(op): index for index, op in enumerate(graph.ops)}
        self.writers: dict[str, list[tuple[int, GraphValue]]] = defaultdict(list)
        for index, op in enumerate(graph.ops):
            for value in op.results:
                self.writers[value.name].append((index, value))

    def lives(self, source: GraphValue, copy: GraphValue) -> bool:
        """Whether a source keeps its bytes as long as its copy is read, and nobody updates the copy in place."""
        last, begun = -1.0, self.at[id(source.op)] if source.op is not None else -1
        for op in self.graph.readers(copy):
            updated = op.definition.must_alias.values()
            if any(value is copy for slot in updated for value in op.inputs.get(slot, ())):
                return False
            last = max(last, self.at[id(op)])
        last = inf if self.graph.is_result(copy) else last
        later = [index for index, value in self.writers[source.name] if index > begun and value is not source]
        return not later or last < min(later)
