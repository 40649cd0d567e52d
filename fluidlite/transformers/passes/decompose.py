"""Decomposition: an operator that a place has no kernel for is said with others, which can then be fused."""

from __future__ import annotations

from fluidlite import unique_name
from fluidlite.base.errors import FluidError
from fluidlite.framework.call import Call
from fluidlite.framework.choose import choose
from fluidlite.framework.decompose import Part, Value, decompose
from fluidlite.framework.operator import Operator
from fluidlite.framework.policy import policy
from fluidlite.framework.spec import Spec
from fluidlite.platform.devices import devices
from fluidlite.transformers.passes.base import GraphPass
from fluidlite.transformers.values import Graph, GraphOp, GraphValue

_PLACEHOLDER = Spec.of((), "float32")


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
            parts = _parts(graph, op)
            if parts is not None:
                _expand(graph, op, parts)
        graph.prune()


def _may(op: GraphOp) -> bool:
    if op.operator is None or "op_library" in op.operator.hints:
        return False
    own = op.operator.definition
    if own.decompose is None or own.host_only or own.random or own.dynamic or own.effect or own.run is not None:
        return False
    if own.must_alias or any(slot.value and op.inputs.get(slot.name) for slot in own.inputs):
        return False  # an update, or made of others for other values
    values = [*op.args, *op.results]
    known = all(v.spec is not None and v.spec.known and not v.spec.lod_level for v in values)
    return known and not any(v.state for v in op.results)


def _parts(graph: Graph, op: GraphOp) -> list[Part] | None:
    assert op.operator is not None
    place = devices.unit(op.operator.hints.get("op_device") or graph.place).place
    ins = {slot: tuple(v.spec for v in values if v.spec is not None) for slot, values in op.inputs.items()}
    outs = {
        slot: tuple(v.spec for v in values if v is not None and v.spec is not None)
        for slot, values in op.outputs.items() if None not in values
    }  # fmt: skip
    call = Call(op.operator.definition, ins, outs, op.attrs).at(place)
    try:
        choice = choose(call, place, policy())
        parts = decompose(call)
    except FluidError:  # it cannot run here, and says so when it is planned
        return None
    if choice.how != "decomposed" or choice.place != place or isinstance(parts, str):
        return None
    late = any(each.kernel is not None and each.kernel.indexes for each in choice.part_choices)
    return None if late or any(part.call.op.random for part in parts) else parts


def _expand(graph: Graph, op: GraphOp, parts: list[Part]) -> None:
    """Put the parts where the operator was."""
    assert op.operator is not None
    near = op.operator
    known: dict[tuple[str, str, int], GraphValue] = {
        ("in", slot, i): value for slot, values in op.inputs.items() for i, value in enumerate(values)
    }
    wanted = {
        ("out", slot, i): value
        for slot, values in op.outputs.items() for i, value in enumerate(values) if value is not None
    }  # fmt: skip
    made: list[GraphOp] = []
    for part in parts:
        definition, attrs = part.call.op, dict(part.call.attrs)
        values = iter(part.ins)
        inputs = {slot: [known[_key(next(values))] for _ in specs] for slot, specs in part.call.ins.items()}
        one = GraphOp(definition.type, inputs, attrs, Operator(
            near.block, definition, {}, {}, attrs, dict(near.hints), near.id, near.role, near.line, near.namescope
        ))  # fmt: skip
        outs = iter(part.outs)
        for slot, specs in _declared(one, part).items():
            one.outputs[slot] = []
            for spec in specs:
                key = _key(next(outs))
                value = wanted.get(key)
                if value is None:
                    value = GraphValue(unique_name.generate(f"{op.type}.part"), spec, one, None)
                value.op = one
                known[key] = value
                one.outputs[slot].append(value)
        made.append(one)
    at = graph.ops.index(op)
    graph.ops[at : at + 1] = made
    graph.touch()


def _key(value: Value) -> tuple[str, str, int]:
    return value.role, value.slot, value.index


def _declared(op: GraphOp, part: Part) -> dict[str, list[Spec]]:
    """The outputs of a part as declared: dims that are not known are -1."""
    ins = {slot: tuple(v.spec for v in values if v.spec is not None) for slot, values in op.inputs.items()}
    outs = {slot: (_PLACEHOLDER,) * len(specs) for slot, specs in part.call.outs.items()}
    assert part.call.op.infer is not None
    results = part.call.op.infer(Call(part.call.op, ins, outs, op.attrs))
    return {
        slot: [found] if isinstance(found := results[slot], Spec) else list(found)[: len(specs)]
        for slot, specs in outs.items()
    }
