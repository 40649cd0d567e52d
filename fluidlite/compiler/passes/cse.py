"""Common subexpressions."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import READ, GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass

_LONG = 64


class CommonSubexpressions(GraphPass):
    """What is computed twice from the same values is computed once; random operators are left alone."""

    def do_pass(self, graph: Graph) -> None:
        several = Counter([op.type for op in graph.ops if op.type != READ])
        if max(several.values(), default=0) < 2:
            return
        seen: dict[Any, GraphOp] = {}
        same: dict[int, GraphValue] = {}
        updated = _updated(graph)
        for op in graph.ops:
            for values in op.inputs.values():
                values[:] = [same.get(id(value), value) for value in values]
            if several[op.type] < 2 or op.definition.random or op.has_effect:
                continue
            if updated and any(id(value) in updated for value in op.results):  # copies of which one changes are two
                continue
            key = (
                op.type,
                tuple([(slot, *map(id, values)) for slot, values in op.inputs.items()]),
                tuple([(name, _exactly(value)) for name, value in op.attrs.items()]),
                op.operator.hints.get("op_device"),
                tuple([(slot, *[v is None or v.spec for v in values]) for slot, values in op.outputs.items()]),
            )
            first = seen.setdefault(key, op)
            if first is not op:
                same.update((id(old), new) for old, new in zip(op.results, first.results, strict=True))
        graph.results = [same.get(id(value), value) for value in graph.results]


def _updated(graph: Graph) -> set[int]:
    """Values whose bytes a reader updates in place."""
    return {
        id(value) for op in graph.ops for slot in op.definition.must_alias.values() for value in op.inputs.get(slot, ())
    }


def _exactly(value: Any) -> Any:
    """An attribute as a key: 0.0 and -0.0 are equal, and not the same; long lists are taken by identity."""
    return id(value) if isinstance(value, tuple) and len(value) > _LONG else repr(value)
