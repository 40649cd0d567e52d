"""Expression fusion: operators that reduce, move or gather elements are fused with their neighbours by a cost model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fluidlite.base.errors import FluidError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.codegen.domain import domain_of
from fluidlite.compiler.ir.graph import Graph, unit_of
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.fuse_dims import GenericDims, typical_dims
from fluidlite.compiler.passes.fused_group import Member, can_be_fused
from fluidlite.compiler.passes.fusion import MAX_NUMBERS, MAX_VARIABLES, Fusion
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.kernel_selection import select_kernel
from fluidlite.compiler.selection.refusals import disuse_reason
from fluidlite.expr.attributes import RefusedCall
from fluidlite.expr.calls import checks_indices
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.program.layout_rewrite import LAYOUT, call_in_layout
from fluidlite.program.op_call import Call
from fluidlite.render.loops.cost import Estimate, estimate
from fluidlite.render.loops.kernels import has_inferred_dims
from fluidlite.tensor.layout import layout_named

MAX_OPERATORS = 16
"""Operators of one kernel; a fused elementwise operator counts as one."""
MAX_TIME_RATIO = 0.97
"""Bound of the estimated time of the fused kernel, divided by that of the separate kernels."""
MIN_SHARED_ELEMENTS = 1 << 12
"""Elements from which a value that two operators share is a reason to fuse them."""
TYPICAL_DIMS = (61, 67, 71, 73, 79, 83, 89, 97)
"""Numbers that replace unknown dims in cost estimates."""


class FuseExpressions(GraphPass):
    """Operators that read each other's results, or the same values, become one, if one kernel of loops is faster.

    Values that only the group reads are not materialized. A cost model decides: bytes moved, functions computed (again
    in each pass of a kernel), launches. Fusion changes no sum: each reduction keeps the order of its elements. Kernels
    of libraries and devices are not fused.
    """

    phase = "fuse"

    def do_pass(self, graph: Graph) -> None:
        """Fuse greedily, in the order in which operators run."""
        candidates = _with_neighbours({index: op for index, op in enumerate(graph.ops) if _is_candidate(op)})
        if not candidates:
            return
        dims = typical_dims(graph, TYPICAL_DIMS)
        calls = {index: call for index, op in candidates.items() if (call := _call_of(op, graph, dims)) is not None}
        members: dict[int, LoopMember] = {}
        for by_elements in (False, True):  # only operators with a neighbour are checked
            candidates = _with_neighbours({index: op for index, op in candidates.items() if index in calls})
            for index, op in candidates.items():
                if (op.definition.scalar is not None) is not by_elements:
                    continue
                member = _member_of(op, calls[index], graph.policy)
                if member is not None:
                    members[index] = member
                else:
                    del calls[index]
        if all(member.elementwise for member in members.values()):
            return  # left to FuseElementwise
        ExpressionFusion(graph, dims, dict(sorted(members.items()))).fuse()


@dataclass(eq=False)
class LoopMember(Member):
    """An operator whose kernel is generated as loops.

    ``checks``: whether it checks indices.
    ``other_dims``: the values, by identity, for which its expression has other dims than inference.
    ``elementwise``: whether all results have one index domain, and none is a sum.
    """

    layout: Any
    checks: bool
    other_dims: frozenset[int]
    elementwise: bool


class ExpressionFusion(Fusion[LoopMember]):
    """The rule of expression fusion: connected operators for which one kernel is estimated to be faster."""

    def candidates(self, index: int) -> list[int]:
        """The members that write the operands of a member, nearest first; then earlier readers of the same operands."""
        member = self.members[index]
        makers: dict[int, None] = {}
        readers: dict[int, None] = {}
        for slot, value in member.inputs.items():
            spec = self.dims.spec(value)
            if member.placed_at(slot) is None or spec is None or spec.size < MIN_SHARED_ELEMENTS:
                continue
            if value.op is not None:
                makers[self.at[id(value.op)]] = None
            readers |= dict.fromkeys(other for other in self.readers[id(value)] if other < index)
        candidates = [*sorted(makers, reverse=True), *sorted(readers, reverse=True)]
        return [other for other in dict.fromkeys(candidates) if other in self.members]

    def can_fuse(self, group: frozenset[int]) -> bool:
        """Whether operators can be one: not all elementwise, on one device, in one layout, and convex."""
        members = self.members_of(group)
        if all(member.elementwise for member in members) or len(members) > MAX_OPERATORS:
            return False
        if (
            len({(member.device, member.layout) for member in members}) > 1
            or sum(m.definition.random for m in members) > 1
        ):
            return False
        checks = sum(member.checks for member in members)  # an error names one operator, and no state may be written
        if checks > 1 or (checks and any(value.state is not None for m in members for value in m.op.results)):
            return False
        other = frozenset().union(*(member.other_dims for member in members))
        if other and any(id(value) in other for member in members for value in member.inputs.values()):
            return False
        return not self.is_split(group)

    def refusal(self, own_group: frozenset[int], other_group: frozenset[int]) -> str | None:
        """Why two kernels are better than one; None if one is faster, and rounds in the same way."""
        fused, first, second = (self._estimate(group) for group in (own_group | other_group, own_group, other_group))
        if fused is None or first is None or second is None:
            return "loops cannot compute both at once"
        if not fused[1] <= first[1] | second[1]:
            return "a sum would be taken in another order"
        separate = first[0] + second[0]
        if fused[0] <= MAX_TIME_RATIO * separate:
            return None
        return f"one kernel is estimated at {fused[0] / 1000:,.0f} us, two at {separate / 1000:,.0f}"

    def _estimate(self, group: frozenset[int]) -> Estimate | None:
        """The time of a group as one kernel, and the orders of its reductions; None if loops cannot compute it."""
        member = self.members[next(iter(group))]
        call = member.call
        if len(group) > 1 or not _has_own_expression(call):
            fused_group = self.fused_group(group)
            if not fused_group.possible or len(fused_group.attrs) > MAX_NUMBERS:
                return None
            if len(fused_group.inputs) + len(fused_group.stored) > MAX_VARIABLES:
                return None
            call = fused_group.call(call.place)
        call = call if member.layout is None else _in_layout(call, member.layout)
        attrs = tuple(call.attrs.items()) if len(group) == 1 else ()  # otherwise they are part of the operator
        key = (call.op, call.place, tuple(call.ins.items()), tuple(call.outs.items()), repr(attrs))
        return _estimates.get(key, lambda: [_estimate(call)])[0]

    def operator(self, group: frozenset[int]) -> GraphOp:
        checking = (self.members[index].op.operator for index in group if self.members[index].checks)
        return self.fused_group(group).operator(next(checking, None))


def _is_candidate(op: GraphOp) -> bool:
    """Whether an operator may be a member, independent of its dims."""
    own = op.definition
    has_expression = own.scalar is not None or own.expression is not None
    return has_expression and own.epilogue is None and can_be_fused(op) and _updates_in_place(op)


def _with_neighbours(ops: Mapping[int, GraphOp]) -> dict[int, GraphOp]:
    """The operators that share a value with another of them."""
    sharing: dict[int, list[int]] = defaultdict(list)
    for index, op in ops.items():
        sides: tuple[Sequence[GraphValue | None], ...] = (*op.inputs.values(), *op.outputs.values())
        for value in {*chain.from_iterable(sides)} - {None}:
            sharing[id(value)].append(index)
    neighbours = {index for indices in sharing.values() if len(indices) > 1 for index in indices}
    return {index: op for index, op in ops.items() if index in neighbours}


def _call_of(op: GraphOp, graph: Graph, dims: GenericDims) -> Call | None:
    """The call of an operator, if its specs are known and the kernel language is used for its sizes; else None."""
    ins, outs = dims.slot_specs(op.inputs), dims.slot_specs(op.outputs)
    if ins is None or not outs:
        return None
    for spec in chain.from_iterable((*ins.values(), *outs.values())):
        if spec.lod_level or spec.kind != "dense":
            return None
    unit = unit_of(graph, op)
    call = Call(op.definition, ins, outs, op.attrs, unit.place)
    return call if disuse_reason("language", call, unit, graph.policy) is None else None


def _member_of(op: GraphOp, call: Call, policy: Policy) -> LoopMember | None:
    assert call.place is not None
    device, layout = op.operator.hints.get("op_device"), op.operator.hints.get(LAYOUT)
    try:
        if not _is_generated_as_loops(call, layout, devices.unit(call.place), policy):
            return None
        elementwise = not call.of_tensors and not domain_of(call).sums
        fits_by_slot = has_inferred_dims(call) if _has_own_expression(call) else {}
        checks = checks_indices(call)
    except (FluidError, RefusedCall):  # it cannot run here, or not at these sizes: the planner raises the error
        return None
    other_dims = frozenset(id(values[0]) for slot, values in op.outputs.items() if not fits_by_slot.get(slot, True))
    return LoopMember(op, call.op, call, device, layout, checks, other_dims, elementwise)


def _has_own_expression(call: Call) -> bool:
    """Whether loops would compute the operator's own expression: it is fused, or a function of tensors."""
    rule = call.op.expression
    return rule is not None and (rule.operators > 0 or call.of_tensors)


def _is_generated_as_loops(call: Call, layout: str | None, unit: Unit, policy: Policy) -> bool:
    """Whether the place would generate a kernel in its kernel language for the call, on tensors in a layout."""
    choice = select_kernel(call if layout is None else _in_layout(call, layout), unit.place, policy)
    return choice.how == "generated" and choice.capability == "language" and choice.place == unit.place


def _in_layout(call: Call, layout: str) -> Call:
    """The call on tensors in the layout that its operators shall compute in; the call itself, if they cannot."""
    in_layout = call_in_layout(call, layout_named(layout))
    return call if in_layout is None else in_layout[0]


def _updates_in_place(op: GraphOp) -> bool:
    """Whether each state output of an operator is the variable of the input that it updates."""
    alias = op.definition.must_alias
    for slot, (value,) in op.outputs.items():
        updated = op.inputs.get(alias.get(slot, ""), ())
        if value is not None and (value.state is not None or updated) and [v.name for v in updated] != [value.name]:
            return False
    return True


_estimates: LRUCache[list[Estimate | None]] = LRUCache(1024, "estimates of fused operators")


def _estimate(call: Call) -> Estimate | None:
    assert call.place is not None
    try:
        return estimate(call, devices.unit(call.place))
    except (FluidError, RefusedCall):  # a part has no expression for these tensors
        return None
