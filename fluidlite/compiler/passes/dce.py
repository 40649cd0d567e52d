"""Dead code."""

from __future__ import annotations

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.passes.base import GraphPass


class DeadCode(GraphPass):
    """What no result and no effect needs is not computed."""

    phase = "prune"

    def do_pass(self, graph: Graph) -> None:
        graph.prune()
