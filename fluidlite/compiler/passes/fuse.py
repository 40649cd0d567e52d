"""Fusion: elementwise operators that follow each other become one, which reads and writes memory once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.fuse_dims import GenericDims, generic_dims
from fluidlite.compiler.passes.fuse_regions import ElementMember, SameElements, member_of
from fluidlite.program.opdef import GRAD


class FuseElementwise(GraphPass):
    """Elementwise operators on the same elements become one operator, with one kernel.

    What a group of operators has to itself is never stored. Nothing is computed twice: a value that others read too is
    stored once. Groups do not cross places, ``op_library``, or a kernel that a library brings for the place.
    """

    phase = "fuse"

    def do_pass(self, graph: Graph) -> None:
        dims = generic_dims(graph)
        members: dict[int, ElementMember] = {}
        for op in graph.ops:
            member = member_of(op, dims, graph.place, graph.policy)
            if member is not None:
                members[id(op)] = member
        if _forward_same_values(graph, members, dims) + _read_dims_elsewhere(graph, dims):
            graph.touch()
            graph.prune()
        _split_sums(graph, members)
        wanted = {index: members[id(op)] for index, op in enumerate(graph.ops) if id(op) in members}
        chosen = {index: m for index, m in wanted.items() if m.outputs}
        if chosen:
            SameElements(graph, dims, chosen).fuse()


def _forward_same_values(graph: Graph, members: dict[int, ElementMember], dims: GenericDims) -> int:
    """Where an output is an input as it is (the gradient of a sum), let its readers read that; return how many."""
    same: dict[int, GraphValue] = {}
    for op in graph.ops:
        updated = op.definition.must_alias.values()
        for given, values in op.inputs.items() if same else ():
            if given not in updated:
                values[:] = [same.get(id(value), value) for value in values]
        member = members.get(id(op))
        if member is None or member.definition.type == "assign" or not set(op.inputs) >= set(member.code.inputs):
            continue
        for slot, dtype, index in member.code.outputs:
            instr = member.code.instrs[index]
            (old,) = op.outputs[slot]
            if instr.op != "input" or old is None or old.state is not None:
                continue
            (new,) = op.inputs[instr.value]
            alike = dtype == member.code.inputs[instr.value] and old.spec == new.spec and new.state is None
            mine, others = dims.dims(old), dims.dims(new)
            if alike and mine is not None and mine == others and dims.certain(mine):
                same[id(old)] = new
    if same:
        graph.results = [same.get(id(value), value) for value in graph.results]
    return len(same)


def _read_dims_elsewhere(graph: Graph, dims: GenericDims) -> int:
    """Where a gradient operator takes a value for its dims alone, and reads another of equal dims: let it take those.

    Else a value would be stored for its dims. Return how many were changed. Other operators may be there to compare the
    two: their dims are equal because they say so.
    """
    changed = 0
    for op in graph.ops:
        definition = op.definition
        if definition.unread.isdisjoint(op.inputs):
            continue
        if not any(GRAD in slot.name for slot in definition.outputs):
            continue
        for slot, values in op.inputs.items():
            declared = definition.input(slot)
            if declared is None or not declared.metadata_only or len(values) != 1:
                continue
            (value,) = values
            mine = dims.dims(value)
            if value.op is None or mine is None or not dims.certain(mine) or value.spec is None or value.spec.lod_level:
                continue
            for other_slot, others in op.inputs.items():
                read = definition.input(other_slot)
                if read is None or read.unread or len(others) != 1:
                    continue
                if others[0].spec == value.spec and dims.dims(others[0]) == mine:
                    values[0] = others[0]
                    changed += 1
                    break
    return changed


def _split_sums(graph: Graph, members: dict[int, ElementMember]) -> None:
    """Make two operators of one that adds up elements for some of its outputs; the other one can be fused.

    The outputs of an elementwise operator are independent, and each is a kernel of its own where it is a sum.
    """
    ops: list[GraphOp] = []
    for op in graph.ops:
        member = members.get(id(op))
        ops.append(op)
        if member is None or member.definition.random:
            continue
        _want(op, member, [slot for slot, (value,) in op.outputs.items() if _wanted(graph, member, slot, value)])
        full = [slot for slot in op.outputs if slot not in member.summed] if member.summed else []
        if not full or any(value.state is not None for value in op.results):
            continue
        other = GraphOp(
            op.type, {slot: list(values) for slot, values in op.inputs.items()}, dict(op.attrs), op.operator
        )
        other.outputs = {slot: values for slot, values in op.outputs.items() if slot in full}
        for value in other.results:
            value.op = other
        apart = replace(member, op=other)
        _want(op, member, list(member.summed))
        _want(other, apart, full)
        members[id(other)] = apart
        ops.append(other)
    graph.ops = ops


def _wanted(graph: Graph, member: ElementMember, slot: str, value: GraphValue | None) -> bool:
    if value is None:
        return False
    declared = member.definition.output(slot)
    may_go = declared is not None and declared.dispensable and value.state is None
    return not may_go or graph.is_result(value) or bool(graph.readers(value))


def _want(op: GraphOp, member: ElementMember, slots: Sequence[str]) -> None:
    """Ask an operator for some of its outputs only."""
    if list(op.outputs) == list(slots) or not slots:
        return
    op.outputs = {slot: values for slot, values in op.outputs.items() if slot in slots}
    member.wants(slots)
