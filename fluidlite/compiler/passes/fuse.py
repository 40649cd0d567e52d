"""Elementwise fusion: connected elementwise operators become one, which reads and writes memory once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fluidlite.base.errors import FluidError
from fluidlite.codegen.domain import Domain, domain_of
from fluidlite.codegen.elementwise_form import elementwise_form_of
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.compiler.ir.graph import Graph, unit_of
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.fuse_dims import GenericDims, generic_dims
from fluidlite.compiler.passes.fused_group import Member, can_be_fused, inputs_by_slot, is_uniform_constant
from fluidlite.compiler.passes.fusion import MAX_NUMBERS, MAX_VARIABLES, Fusion
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.refusals import device_veto, kernel_refusal
from fluidlite.compiler.selection.single_kernel import GENERATED_CAPABILITIES, is_after_plain
from fluidlite.platform.device_registry import Unit
from fluidlite.program.codegen_registry import generators
from fluidlite.program.kernel_registry import CAPABILITIES, kernels
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD
from fluidlite.tensor.tensor_spec import Dims


class FuseElementwise(GraphPass):
    """Elementwise operators with the same index domain become one operator, with one kernel.

    Values that only the group reads are not materialized. Nothing is computed twice: a value with other readers is
    materialized once. Groups do not cross places, ``op_library``, or kernels of a library for the place.
    """

    phase = "fuse"

    def do_pass(self, graph: Graph) -> None:
        dims = generic_dims(graph)
        members: dict[int, ElementMember] = {}
        for op in graph.ops:
            member = member_of(op, dims, graph)
            if member is not None:
                members[id(op)] = member
        if _forward_identities(graph, members, dims) + _read_dims_elsewhere(graph, dims):
            graph.touch()
            graph.prune()
        _split_sums(graph, members)
        by_index = {index: members[id(op)] for index, op in enumerate(graph.ops) if id(op) in members}
        candidates = {index: m for index, m in by_index.items() if m.outputs}
        if candidates:
            ElementwiseFusion(graph, dims, candidates).fuse()


def _forward_identities(graph: Graph, members: dict[int, ElementMember], dims: GenericDims) -> int:
    """Let readers of an output that equals an input (the gradient of a sum) read the input; return the number."""
    replacements: dict[int, GraphValue] = {}
    for op in graph.ops:
        updated_slots = op.definition.must_alias.values()
        for slot, values in op.inputs.items() if replacements else ():
            if slot not in updated_slots:
                values[:] = [replacements.get(id(value), value) for value in values]
        member = members.get(id(op))
        if member is None or member.definition.type == "assign" or not set(op.inputs) >= set(member.code.inputs):
            continue
        for slot, dtype, index in member.code.outputs:
            instr = member.code.instrs[index]
            (old,) = op.outputs[slot]
            if instr.op != "input" or old is None or old.state is not None:
                continue
            (new,) = op.inputs[instr.value]
            is_equal = dtype == member.code.inputs[instr.value] and old.spec == new.spec and new.state is None
            old_dims, new_dims = dims.dims(old), dims.dims(new)
            if is_equal and old_dims is not None and old_dims == new_dims and dims.is_certain(old_dims):
                replacements[id(old)] = new
    if replacements:
        graph.results = [replacements.get(id(value), value) for value in graph.results]
    return len(replacements)


def _read_dims_elsewhere(graph: Graph, dims: GenericDims) -> int:
    """Let a gradient operator that reads a value for its dims alone take the dims of another operand with equal dims.

    Otherwise the value would be materialized for its dims. Returns the number of changes. Other operators are not
    changed: they may check that both operands have equal dims.
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
            spec, own = value.spec, dims.dims(value)
            if value.op is None or own is None or not dims.is_certain(own) or spec is None or spec.lod_level:
                continue
            for other_slot, other_values in op.inputs.items():
                read = definition.input(other_slot)
                if read is None or read.unread or len(other_values) != 1:
                    continue
                if other_values[0].spec == value.spec and dims.dims(other_values[0]) == own:
                    values[0] = other_values[0]
                    changed += 1
                    break
    return changed


def _split_sums(graph: Graph, members: dict[int, ElementMember]) -> None:
    """Split an operator of which some outputs are sums of elements in two; the operator without sums can be fused.

    The outputs of an elementwise operator are independent, and each sum is a kernel of its own.
    """
    ops: list[GraphOp] = []
    for op in graph.ops:
        member = members.get(id(op))
        ops.append(op)
        if member is None or member.definition.random:
            continue
        used = [slot for slot, (value,) in op.outputs.items() if _is_used(graph, member, slot, value)]
        _restrict_outputs(op, member, used)
        sums = member.domain.sums
        elementwise_slots = [slot for slot in op.outputs if slot not in sums] if sums else []
        if not elementwise_slots or any(value.state is not None for value in op.results):
            continue
        elementwise_op = GraphOp(
            op.type, {slot: list(values) for slot, values in op.inputs.items()}, dict(op.attrs), op.operator
        )
        elementwise_op.outputs = {slot: values for slot, values in op.outputs.items() if slot in elementwise_slots}
        for value in elementwise_op.results:
            value.op = elementwise_op
        elementwise_member = replace(member, op=elementwise_op)
        _restrict_outputs(op, member, list(sums))
        _restrict_outputs(elementwise_op, elementwise_member, elementwise_slots)
        members[id(elementwise_op)] = elementwise_member
        ops.append(elementwise_op)
    graph.ops = ops


def _is_used(graph: Graph, member: ElementMember, slot: str, value: GraphValue | None) -> bool:
    if value is None:
        return False
    declared = member.definition.output(slot)
    can_be_removed = declared is not None and declared.dispensable and value.state is None
    return not can_be_removed or graph.is_result(value) or bool(graph.readers(value))


def _restrict_outputs(op: GraphOp, member: ElementMember, slots: Sequence[str]) -> None:
    """Remove all outputs but some from an operator."""
    if list(op.outputs) == list(slots) or not slots:
        return
    op.outputs = {slot: values for slot, values in op.outputs.items() if slot in slots}
    member.restrict_outputs(slots)


MAX_OPERATORS = 128
"""Operators of one kernel: the time of compilers grows more than linearly."""


@dataclass(eq=False)
class ElementMember(Member):
    """An elementwise operator.

    ``domain``: its index domain, the axes of operands and outputs in it, and the outputs that are sums.
    """

    code: Typed
    domain: Domain

    @cached_property
    def reads(self) -> list[tuple[str, GraphValue]]:
        """Its inputs whose elements it reads; read it after outputs have been removed."""
        return [(slot, value) for slot, value in self.inputs.items() if slot in self.code.inputs]

    def restrict_outputs(self, slots: Sequence[str]) -> None:
        """Remove all outputs but these from its call and code."""
        outs = {slot: specs for slot, specs in self.call.outs.items() if slot in slots}
        self.call = self.call.with_outs(outs)
        self.code, self.domain = typed_of(self.call), domain_of(self.call)

    def placed_at(self, slot: str) -> Dims | None:
        """The axes of an operand in the domain; None if its elements are not read."""
        return self.domain.placed[slot] if slot in self.code.inputs else None


def member_of(op: GraphOp, dims: GenericDims, graph: Graph) -> ElementMember | None:
    """The operator as a candidate for fusion on its place; None if it is not fused."""
    if not can_be_fused(op):
        return None
    own = op.definition
    definition = own if own.scalar is not None else elementwise_form_of(own, len(op.args))
    if definition is None or definition.scalar is None:
        return None
    inputs = inputs_by_slot(op, definition)
    if not definition.slots.issuperset((*inputs, *op.outputs)):
        return None
    ins, outs = dims.specs(inputs), dims.slot_specs(op.outputs)
    if ins is None or not outs:
        return None
    call = Call(definition, ins, outs, op.attrs)
    unit = unit_of(graph, op)
    if not _is_generated(call, definition is not own, unit, graph.policy) or _is_vetoed(op, unit):
        return None
    try:
        code, domain = typed_of(call), domain_of(call)
    except FluidError:  # wrong dims: it is not fused, and the run raises the error
        return None
    return ElementMember(op, definition, call, op.operator.hints.get("op_device"), code, domain)


def _is_vetoed(op: GraphOp, unit: Unit) -> bool:
    """Whether the device refuses the operator: it would not see it as part of a fused one."""
    return unit.supports is not None and device_veto(op.call(), unit) is not None


def _is_generated(call: Call, form: bool, unit: Unit, preferences: Policy) -> bool:
    """Whether the place would generate a kernel for this call instead of using one of a library."""
    if "generated" in preferences.exclude:
        return False
    for name in GENERATED_CAPABILITIES:
        if getattr(unit, name) is None or name not in generators or name in preferences.exclude:
            continue
        if name == "language" and preferences.codegen and preferences.capability(unit.place.kind) == "array":
            continue
        if generators[name].refuse(call, unit) is None:
            break
    else:
        return False
    if form:
        return True
    for kernel in kernels.of(call.op.type):
        native = not set(kernel.places) & set(CAPABILITIES) and kernel.runs_on(unit.place.kind)
        native = native and not is_after_plain(kernel, unit.place.kind, preferences)
        if native and kernel_refusal(kernel, call, unit) is None:
            return False
    return True


class ElementwiseFusion(Fusion[ElementMember]):
    """The rule of elementwise fusion: connected operators with one domain; one kernel is never slower than two."""

    def candidates(self, index: int) -> list[int]:
        """The members that write the operands of a member, nearest first."""
        makers = {self.at[id(value.op)] for _, value in self.members[index].reads if value.op is not None}
        return [k for k in sorted(makers, reverse=True) if k in self.members and not self.members[k].domain.sums]

    def can_fuse(self, group: frozenset[int]) -> bool:
        """Whether operators can be one kernel: one domain, and within the limits of operators and arguments."""
        members = self.members_of(group)
        if len(members) > MAX_OPERATORS or len({(member.domain.dims, member.device) for member in members}) > 1:
            return False
        if sum([member.definition.random for member in members]) > 1:
            return False
        makers = {id(value): (m, slot) for m in members for slot, value in m.outputs.items()}
        loaded: set[tuple[int, Dims]] = set()
        constants: set[tuple[int, Dims]] = set()
        for member in members:
            for slot, value in member.reads:
                maker, axes = makers.get(id(value)), member.domain.placed[slot]
                if maker is None:
                    (constants if is_uniform_constant(value) else loaded).add((id(value), axes))
                elif maker[0].domain.placed[maker[1]] != axes or slot in member.definition.must_alias.values():
                    return False
        stored = [value for m in members for value in m.outputs.values() if self.is_live_out(value, group)]
        if len({value.name for value in stored}) < len(stored):
            return False
        if len(stored) > 1 and any(member.domain.sums for member in members):
            return False  # each sum would be a kernel that recomputes their common operands
        numbers = len(constants) + sum([len(member.code.scalars) for member in members])
        if len(loaded) + len(stored) > MAX_VARIABLES or numbers > MAX_NUMBERS:
            return False
        return not self.is_split(group)
