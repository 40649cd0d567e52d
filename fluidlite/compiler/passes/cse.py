"""Common subexpression elimination."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import READ, GraphOp
from fluidlite.compiler.passes.base import GraphPass

_MAX_REPR_ITEMS = 64
"""Items of a tuple attribute up to which tuples are compared by value; longer ones by identity."""


class CommonSubexpressions(GraphPass):
    """Equal operators on equal values are computed once; random operators are not merged."""

    def do_pass(self, graph: Graph) -> None:
        type_counts = Counter([op.type for op in graph.ops if op.type != READ])
        if max(type_counts.values(), default=0) < 2:
            return
        first_by_key: dict[Any, GraphOp] = {}
        updated = _updated_values(graph)
        for op in graph.ops:
            if type_counts[op.type] < 2 or op.definition.random or op.has_effect:
                continue
            if updated and any(id(value) in updated for value in op.results):  # copies stay separate
                continue
            key = (
                op.type,
                tuple([(slot, *map(id, values)) for slot, values in op.inputs.items()]),
                tuple([(name, _attr_key(value)) for name, value in op.attrs.items()]),
                op.operator.hints.get("op_device"),
                tuple([(slot, *[v is None or v.spec for v in values]) for slot, values in op.outputs.items()]),
            )
            first = first_by_key.setdefault(key, op)
            if first is not op:
                for old, new in zip(op.results, first.results, strict=True):
                    graph.replace(old, new)


def _updated_values(graph: Graph) -> set[int]:
    """Values that a reader updates in place, by identity."""
    return {
        id(value) for op in graph.ops for slot in op.definition.must_alias.values() for value in op.inputs.get(slot, ())
    }


def _attr_key(value: Any) -> Any:
    """The key of an attribute: 0.0 and -0.0 differ; long tuples are compared by identity."""
    return id(value) if isinstance(value, tuple) and len(value) > _MAX_REPR_ITEMS else repr(value)
