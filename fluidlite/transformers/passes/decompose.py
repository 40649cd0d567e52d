"""Decomposition: an operator that a place has no kernel for is said with others, which can then be fused."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import unique_name
from fluidlite.framework.call import Call
from fluidlite.framework.choose import choose
from fluidlite.framework.decompose import Part, Value, decompose
from fluidlite.framework.operator import Operator
from fluidlite.framework.policy import policy
from fluidlite.framework.spec import Spec
from fluidlite.platform.devices import devices
from fluidlite.transformers.passes.base import GraphPass
from fluidlite.transformers.passes.fuse_dims import GenericDims
from fluidlite.transformers.values import Graph, GraphOp, GraphValue

_PLACEHOLDER = Spec.of((), "float32")


class Decompose(GraphPass):
    """What the place would compute by a decomposition becomes the operators of that, where no size is written in them.

    The planner decomposes what is left: updates of state, operators on sequences, and those whose parts name sizes
    that are not known yet.
    """

    phase = "decompose"

    def do_pass(self, graph: Graph) -> None:
        """Go through the operators once: a part that is itself decomposed was taken apart with the whole."""
        able = [op for op in graph.ops if _may(op)]
        if not able:
            return
        several = GenericDims(graph, 101, 2), GenericDims(graph, 211, 6)  # small: parts may hold arrays of such sizes
        for op in able:
            parts = _parts(graph, op, several)
            if parts is not None:
                _expand(graph, op, parts)
        graph.prune()


def _may(op: GraphOp) -> bool:
    if op.operator is None or "op_library" in op.operator.hints:
        return False
    own = op.operator.definition
    if own.decompose is None or own.host_only or own.random or own.dynamic or own.effect or own.run is not None:
        return False
    if any(slot.value and op.inputs.get(slot.name) for slot in own.inputs):  # what it is made of depends on numbers
        return False
    values = [*op.args, *op.results]
    return all(v.spec is not None and not v.spec.lod_level for v in values) and not any(v.state for v in op.results)


def _parts(graph: Graph, op: GraphOp, several: Sequence[GenericDims]) -> list[Part] | None:
    """The parts of an operator, if they are the same for all sizes that are not known."""
    assert op.operator is not None
    place = devices.unit(op.operator.hints.get("op_device") or graph.place).place
    found: list[list[Part]] = []
    for dims in several:
        call = _call(op, dims)
        if call is None:
            return None
        call = call.at(place)
        try:
            choice = choose(call, place, policy())
            parts = decompose(call)
        except Exception:  # these dims are made up: what goes wrong with them says nothing of the user's program
            return None
        if choice.how != "decomposed" or choice.place != place or isinstance(parts, str):
            return None
        found.append(parts)
    first, *others = found
    return first if all(_alike(first, other) for other in others) and not any(p.call.op.random for p in first) else None


def _call(op: GraphOp, dims: GenericDims) -> Call | None:
    """The call of an operator with made-up numbers for dims that are not known."""
    assert op.operator is not None
    sides = []
    for slots in (op.inputs, {slot: values for slot, values in op.outputs.items() if None not in values}):
        flat = dims.specs({f"{slot} {i}": v for slot, vs in slots.items() for i, v in enumerate(vs) if v is not None})
        if flat is None:
            return None
        sides.append({slot: tuple(flat[f"{slot} {i}"][0] for i in range(len(vs))) for slot, vs in slots.items()})
    return Call(op.operator.definition, sides[0], sides[1], op.attrs)


def _alike(parts: list[Part], others: list[Part]) -> bool:
    """Whether two decompositions differ in dims alone."""

    def names(values: Sequence[Value]) -> list[tuple[str, str, int]]:
        return [(value.role, value.slot, value.index) for value in values]

    return len(parts) == len(others) and all(
        one.call.op is other.call.op and one.call.attrs == other.call.attrs
        and names(one.ins) == names(other.ins) and names(one.outs) == names(other.outs)
        for one, other in zip(parts, others, strict=True)
    )  # fmt: skip


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
