"""Fusion: elementwise operators that follow each other become one, which reads and writes memory once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fluidlite.base.errors import FluidError
from fluidlite.codegen.domain import Domain, domain_of
from fluidlite.codegen.elementwise_form import elementwise_form_of
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.fuse_dims import GenericDims, generic_dims
from fluidlite.compiler.passes.fusion import MOST_NUMBERS, MOST_VARIABLES, Fusion
from fluidlite.compiler.passes.joined import Member, inputs_by_slot, is_number, may_join
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.refusals import device_veto, refuse
from fluidlite.compiler.selection.single_kernel import GENERATED_FOR, after_plain
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.platform.place import Place
from fluidlite.program.codegen_registry import generators
from fluidlite.program.kernel_registry import CAPABILITIES, kernels
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD
from fluidlite.tensor.tensor_spec import Dims


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


MOST_OPERATORS = 128
"""Operators of one kernel: compilers take more than linear time."""


@dataclass(eq=False)
class ElementMember(Member):
    """An operator that computes elements, one by one.

    ``domain``: the elements that it works on, where its operands and outputs lie among them, and which of these are
    sums.
    """

    code: Typed
    domain: Domain

    @cached_property
    def reads(self) -> list[tuple[str, GraphValue]]:
        """What it reads the elements of, once groups are made."""
        return [(slot, value) for slot, value in self.inputs.items() if slot in self.code.inputs]

    def wants(self, slots: Sequence[str]) -> None:
        """Leave all outputs but these out of its call and code."""
        outs = {slot: specs for slot, specs in self.call.outs.items() if slot in slots}
        self.call = self.call.with_outs(outs)
        self.code, self.domain = typed_of(self.call), domain_of(self.call)

    @property
    def placed(self) -> Mapping[str, Dims]:
        """Where the operands and the outputs lie in the domain."""
        return self.domain.placed

    def placed_at(self, slot: str) -> Dims | None:
        """Where what it reads lies; None: it reads no elements of it."""
        return self.placed[slot] if slot in self.code.inputs else None

    @property
    def summed(self) -> Mapping[str, tuple[int, ...]]:
        """The outputs that add up elements, and along which axes."""
        return self.domain.sums

    @property
    def numbers(self) -> int:
        """How many arguments its float attributes are, at most."""
        return len(self.code.scalars)


def member_of(op: GraphOp, dims: GenericDims, place: Place, preferences: Policy) -> ElementMember | None:
    """The operator as a member of a group on its place or, if it has none, on this; None if it is to run alone."""
    if not may_join(op):
        return None
    own = op.definition
    definition = own if own.scalar is not None else elementwise_form_of(own, len(op.args))
    if definition is None or definition.scalar is None:
        return None
    inputs = inputs_by_slot(op, definition)
    if not definition.slots.issuperset((*inputs, *op.outputs)):
        return None
    ins, outs = dims.specs(inputs), dims.grouped(op.outputs)
    if ins is None or not outs:
        return None
    call = Call(definition, ins, outs, op.attrs)
    device = op.operator.hints.get("op_device")
    unit = devices.unit(device or place)
    if not _generated(call, definition is not own, unit, preferences) or _vetoed(op, unit):
        return None
    try:
        code, domain = typed_of(call), domain_of(call)
    except FluidError:  # its dims fit nothing known: it is left as it is, and says so when it runs
        return None
    return ElementMember(op, definition, call, device, code, domain)


def _vetoed(op: GraphOp, unit: Unit) -> bool:
    """Whether the device refuses the operator; as part of a fused one it would not see it."""
    return unit.supports is not None and device_veto(op.call(), unit) is not None


def _generated(call: Call, form: bool, unit: Unit, preferences: Policy) -> bool:
    """Whether the place would generate a kernel for this call, and has none of a library that it prefers."""
    if "generated" in preferences.exclude:
        return False
    for name in GENERATED_FOR:
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
        if native and not after_plain(kernel, unit.place.kind, preferences) and refuse(kernel, call, unit) is None:
            return False
    return True


class SameElements(Fusion[ElementMember]):
    """Operators that work on the same elements, and read each other's: one kernel never takes longer than two."""

    def near(self, index: int) -> list[int]:
        """Those that make what one reads the elements of, nearest first."""
        makers = {self.at[id(value.op)] for _, value in self.members[index].reads if value.op is not None}
        return [k for k in sorted(makers, reverse=True) if k in self.members and not self.members[k].summed]

    def may(self, group: frozenset[int]) -> bool:
        """Whether operators can be one kernel: the same elements, and not too much of anything."""
        members = self.of(group)
        if len(members) > MOST_OPERATORS or len({(member.domain.dims, member.device) for member in members}) > 1:
            return False
        if sum([member.definition.random for member in members]) > 1:
            return False
        made = {id(value): (m, slot) for m in members for slot, value in m.outputs.items()}
        loaded: set[tuple[int, Dims]] = set()
        constants: set[tuple[int, Dims]] = set()
        for member in members:
            for slot, value in member.reads:
                maker = made.get(id(value))
                if maker is None:
                    (constants if is_number(value) else loaded).add((id(value), member.placed[slot]))
                elif maker[0].placed[maker[1]] != member.placed[slot] or slot in member.definition.must_alias.values():
                    return False
        stored = [value for m in members for value in m.outputs.values() if self.leaves(value, group)]
        if len({value.name for value in stored}) < len(stored):
            return False
        if len(stored) > 1 and any(member.summed for member in members):
            return False  # each would be a kernel, and compute what leads to both again
        numbers = len(constants) + sum([member.numbers for member in members])
        if len(loaded) + len(stored) > MOST_VARIABLES or numbers > MOST_NUMBERS:
            return False
        return not self.between(group)
