"""Decomposition: replaces operators without a kernel on their place by several others, which can then be fused."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import unique_name
from fluidlite.base.errors import FluidError
from fluidlite.compiler.ir.graph import Graph, unit_of
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.ir.verify import inferred_specs
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.selection.kernel_selection import fusible_choice, select_kernel
from fluidlite.program.decompose import DecompositionPart, decompose, value_key
from fluidlite.program.operator import NOT_EXPANDED


class Decompose(GraphPass):
    """Replaces operators that their place computes by a decomposition, if all dims are known.

    Errors in known dims were raised when the program was built. Errors that depend on unknown dims or on indices are
    raised by a run and name the user's operator; so the planner decomposes the operators that can raise them, and
    updates of state and operators on sequences.
    """

    phase = "decompose"

    def do_pass(self, graph: Graph) -> None:
        """Process the operators once: parts that are decomposed themselves were spliced in by kernel selection."""
        for op in [op for op in graph.ops if _is_decomposable(op)]:
            reason = _refusal(op)
            parts = _parts(graph, op) if reason is None else reason
            if isinstance(parts, str):
                op.set_hint(NOT_EXPANDED, parts)  # the reason, for reports
            elif parts is not None:
                _expand(graph, op, parts)


def _is_decomposable(op: GraphOp) -> bool:
    """Whether an operator has a decomposition that can replace it in the graph."""
    own = op.definition
    return own.decompose is not None and not (own.host_only or own.dynamic or own.may_act)


def _refusal(op: GraphOp) -> str | None:
    """Why the planner must decompose an operator, without fusion; None if this pass may."""
    own = op.definition
    if "op_library" in op.hints:
        return "its library is chosen by op_library"
    if own.random:
        return "it draws random numbers"
    if own.must_alias:
        return "it updates a variable in place"
    values = [slot.name for slot in own.inputs if slot.value and op.inputs.get(slot.name)]
    if values:
        return f"its decomposition depends on the numbers in {', '.join(values)}"
    groups: list[tuple[str, Sequence[GraphValue | None]]] = [*op.inputs.items(), *op.outputs.items()]
    for slot, group in groups:
        for value in group:
            if value is None or value.spec is None:
                return f"the dims of {slot} are not declared"
            if not value.spec.is_static:
                return f"{slot} is {value.spec!r}, and a pass decomposes only where all dims are known before the run"
            if value.spec.lod_level:
                return f"{slot} holds sequences"
    if any(v.state for v in op.results):
        return "it writes state"
    return None


def _parts(graph: Graph, op: GraphOp) -> list[DecompositionPart] | str | None:
    """The parts of the decomposition, or why the operator is not replaced; None if its place has a kernel."""
    unit = unit_of(graph, op)
    place = unit.place
    call = op.call(place)
    try:
        choice = select_kernel(call, place, graph.policy)
        if choice.how == "generated" and choice.capability == "language":
            choice = fusible_choice(call, unit, graph.policy) or choice
        if choice.how != "decomposed" or choice.place != place:
            return None
        parts = decompose(call)
    except FluidError:  # it cannot run here: the planner raises the error
        return None
    if isinstance(parts, str):
        return None
    if any(each.indexes(part.call) for each, part in zip(choice.part_choices, choice.parts, strict=True)):
        return "an index error must name the whole operator"
    return "a part of it draws random numbers" if any(part.call.op.random for part in parts) else parts


def _expand(graph: Graph, op: GraphOp, parts: list[DecompositionPart]) -> None:
    values_by_key: dict[tuple[str, str, int], GraphValue] = {
        ("in", slot, i): value for slot, values in op.inputs.items() for i, value in enumerate(values)
    }
    results = {
        ("out", slot, i): value
        for slot, values in op.outputs.items()
        for i, value in enumerate(values)
        if value is not None
    }
    expanded: list[GraphOp] = []
    for part in parts:
        values = iter(part.ins)
        inputs = {
            slot: [values_by_key[value_key(next(values))] for _ in specs] for slot, specs in part.call.ins.items()
        }
        part_op = GraphOp.derived_from(op.operator, part.call.op, inputs, part.call.attrs, op.hints)
        part_op.outputs = {slot: [None] * len(specs) for slot, specs in part.call.outs.items()}
        declared, outs = inferred_specs(part_op), iter(part.outs)  # with -1 for unknown dims
        assert declared is not None
        for slot, holders in part_op.outputs.items():
            for number, spec in enumerate(declared[slot][: len(holders)]):
                key = value_key(next(outs))
                value = results.get(key)
                if value is None:
                    value = GraphValue(unique_name.generate(f"{op.type}.part"), spec, part_op, None)
                value.op = part_op
                values_by_key[key] = value
                holders[number] = value
        expanded.append(part_op)
    position = graph.ops.index(op)
    graph.ops[position : position + 1] = expanded
    graph.touch()
