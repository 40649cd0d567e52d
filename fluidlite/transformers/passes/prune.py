"""Dead code."""

from __future__ import annotations

from fluidlite.transformers.passes.base import GraphPass
from fluidlite.transformers.values import Graph


class DeadCode(GraphPass):
    """What no result and no effect needs is not computed."""

    phase = "prune"

    def do_pass(self, graph: Graph) -> None:
        """Take the operators out."""
        graph.prune()
