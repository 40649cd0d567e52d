"""Which operators of a graph are fused: groups that work on the same elements, and that nothing has to run between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fluidlite.base.errors import FluidError
from fluidlite.codegen.domain import Domain, domain_of
from fluidlite.codegen.elementwise_form import elementwise_form_of
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.fuse_dims import GenericDims
from fluidlite.compiler.passes.fusion import MOST_NUMBERS, MOST_VARIABLES, Fusion
from fluidlite.compiler.passes.joined import Member, inputs_by_slot, is_number, may_join
from fluidlite.compiler.selection.policy import Policy
from fluidlite.compiler.selection.refusals import device_veto, refuse
from fluidlite.compiler.selection.single_kernel import GENERATED_FOR, after_plain
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.platform.place import Place
from fluidlite.program.codegen_registry import generators
from fluidlite.program.kernel_registry import CAPABILITIES, kernels
from fluidlite.program.op_call import Call
from fluidlite.tensor.tensor_spec import Dims

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
