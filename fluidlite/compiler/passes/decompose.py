"""Decomposition: an operator that a place has no kernel for is said with others, which can then be fused."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import unique_name
from fluidlite.base.errors import FluidError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.ir.verify import inferred
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.selection.kernel_selection import choose, fusible_choice
from fluidlite.platform.device_registry import devices
from fluidlite.program.decompose import Part, decompose, key_of
from fluidlite.program.operator import NOT_EXPANDED


class Decompose(GraphPass):
    """What the place would compute by a decomposition becomes the operators of that, where all dims are known.

    Mistakes in known dims were refused when the program was built; others are found when it runs, and are told of the
    operator that the user wrote, as is an index out of range. The planner decomposes those operators, updates of state,
    and operators on sequences.
    """

    phase = "decompose"

    def do_pass(self, graph: Graph) -> None:
        """Go through the operators once: a part that is itself decomposed was taken apart with the whole."""
        for op in [op for op in graph.ops if _may(op)]:
            reason = _refusal(op)
            parts = _parts(graph, op) if reason is None else reason
            if isinstance(parts, str):
                op.set_hint(NOT_EXPANDED, parts)  # for reports: why it stays
            elif parts is not None:
                _expand(graph, op, parts)


def _may(op: GraphOp) -> bool:
    """Whether an operator has a decomposition that can stand in its place."""
    own = op.definition
    return own.decompose is not None and not (own.host_only or own.dynamic or own.may_act)


def _refusal(op: GraphOp) -> str | None:
    """Why the planner has to decompose an operator, which fuses nothing; None if a pass may."""
    own = op.definition
    if "op_library" in op.hints:
        return "its library is chosen by op_library"
    if own.random:
        return "it draws random numbers"
    if own.must_alias:
        return "it updates a variable in place"
    values = [slot.name for slot in own.inputs if slot.value and op.inputs.get(slot.name)]
    if values:
        return f"what it is decomposed into depends on the numbers in {', '.join(values)}"
    groups: list[tuple[str, Sequence[GraphValue | None]]] = [*op.inputs.items(), *op.outputs.items()]
    for slot, group in groups:
        for value in group:
            if value is None or value.spec is None:
                return f"the dims of {slot} are not declared"
            if not value.spec.known:
                return f"{slot} is {value.spec!r}, and a pass decomposes only where all dims are known before the run"
            if value.spec.lod_level:
                return f"{slot} holds sequences"
    if any(v.state for v in op.results):
        return "it writes state"
    return None


def _parts(graph: Graph, op: GraphOp) -> list[Part] | str | None:
    """What the place decomposes an operator into, or why that stays together; None: the place has a kernel for it."""
    unit = devices.unit(op.hints.get("op_device") or graph.place)
    place = unit.place
    call = op.call(place)
    try:
        choice = choose(call, place, graph.policy)
        if choice.how == "generated" and choice.capability == "language":
            choice = fusible_choice(call, unit, graph.policy) or choice
        if choice.how != "decomposed" or choice.place != place:
            return None
        parts = decompose(call)
    except FluidError:  # it cannot run here, and says so when it is planned
        return None
    if isinstance(parts, str):
        return None
    if any(each.indexes(part.call) for each, part in zip(choice.part_choices, choice.parts, strict=True)):
        return "an index out of range is told of the whole operator"
    return "a part of it draws random numbers" if any(part.call.op.random for part in parts) else parts


def _expand(graph: Graph, op: GraphOp, parts: list[Part]) -> None:
    known: dict[tuple[str, str, int], GraphValue] = {
        ("in", slot, i): value for slot, values in op.inputs.items() for i, value in enumerate(values)
    }
    wanted = {
        ("out", slot, i): value
        for slot, values in op.outputs.items()
        for i, value in enumerate(values)
        if value is not None
    }
    made: list[GraphOp] = []
    for part in parts:
        values = iter(part.ins)
        inputs = {slot: [known[key_of(next(values))] for _ in specs] for slot, specs in part.call.ins.items()}
        one = GraphOp.derived_from(op.operator, part.call.op, inputs, part.call.attrs, op.hints)
        one.outputs = {slot: [None] * len(specs) for slot, specs in part.call.outs.items()}
        declared, outs = inferred(one), iter(part.outs)  # dims that are not known are -1
        assert declared is not None
        for slot, holders in one.outputs.items():
            for number, spec in enumerate(declared[slot][: len(holders)]):
                key = key_of(next(outs))
                value = wanted.get(key)
                if value is None:
                    value = GraphValue(unique_name.generate(f"{op.type}.part"), spec, one, None)
                value.op = one
                known[key] = value
                holders[number] = value
        made.append(one)
    at = graph.ops.index(op)
    graph.ops[at : at + 1] = made
    graph.touch()
