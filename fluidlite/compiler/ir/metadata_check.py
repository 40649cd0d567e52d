"""The form of a graph: whether its lists hold what belongs there. Asked when a pass left what nothing fits."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.ir.verify import check_operator


def malformed(graph: Graph) -> str | None:
    """Say what is no part of a graph where one should be, or None."""
    for what, items, kind in (("operators", graph.ops, GraphOp), ("results", graph.results, GraphValue)):
        if not isinstance(items, list):
            return f"its {what} are a {type(items).__name__}; expected a list"
        for item in items:
            if not isinstance(item, kind):
                return f"{item!r} is among its {what}; expected a {kind.__name__}"
    for op in graph.ops:
        found = _slots(op)
        if found is not None:
            return found
        try:
            check_operator(op)
        except ProgramError as exc:
            return str(exc)
    return None


def _slots(op: GraphOp) -> str | None:
    sides: list[tuple[str, Any]] = [("inputs", op.inputs), ("outputs", op.outputs)]
    for side, slots in sides:
        if not isinstance(slots, dict):
            return f"the {side} of an operator {op.type!r} are {slots!r}; expected a dict of lists of values"
        for slot, values in slots.items():
            if not isinstance(values, list):
                return f"{slot} of an operator {op.type!r} is {values!r}; expected a list of values"
            for value in values:
                if not isinstance(value, GraphValue) and (side == "inputs" or value is not None):
                    return f"{slot} of an operator {op.type!r} holds {value!r}; expected values of the graph"
    if not isinstance(op.attrs, dict):
        return f"the attributes of {op!r} are {op.attrs!r}; expected a dict"
    return None
