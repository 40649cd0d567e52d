"""Dead code elimination."""

from __future__ import annotations

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.passes.base import GraphPass


class DeadCode(GraphPass):
    """Removes operators on which no result and no effect depends."""

    phase = "prune"

    def do_pass(self, graph: Graph) -> None:
        graph.prune()
