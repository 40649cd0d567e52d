"""Fusion of expressions: operators that reduce, move or gather elements become one with what is around them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fluidlite.base.errors import FluidError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.codegen.domain import domain_of
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.fuse_dims import GenericDims, typical_dims
from fluidlite.compiler.passes.fusion import MOST_NUMBERS, MOST_VARIABLES, Fusion
from fluidlite.compiler.passes.joined import Member, may_join
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.kernel_selection import choose
from fluidlite.compiler.selection.refusals import unused
from fluidlite.expr.attributes import Refused
from fluidlite.expr.calls import checks_indices
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.program.layout_rewrite import LAYOUT, relaid_call
from fluidlite.program.op_call import Call
from fluidlite.program.operator import Operator
from fluidlite.render.loops.cost import Estimate, estimate
from fluidlite.render.loops.kernels import dims_fit
from fluidlite.tensor.layout import layout_named

MAX_OPERATORS = 16
"""Operators of one kernel; fused elementwise ones count as one."""
GAIN = 0.97
"""One kernel has to take at most this part of the estimated time of several."""
LARGE = 1 << 12
"""Values of so many elements are worth a kernel less."""
TYPICAL = (61, 67, 71, 73, 79, 83, 89, 97)
"""Dims that are not known are taken for these when costs are estimated."""


class FuseExpressions(GraphPass):
    """Operators that read each other's results, or the same ones, become one, if loops compute it in less time.

    What a group has to itself is not stored. One cost model decides: bytes that move, functions that are computed
    (again in each pass of a kernel), launches. A reduction goes through its elements in the order in which it would
    alone, so that fusion changes no sum. Kernels of a library, and those that a device brings, are not fused.
    """

    phase = "fuse"

    def do_pass(self, graph: Graph) -> None:
        """Join what is worth it, greedily, in the order in which operators run."""
        left = _with_neighbours({index: op for index, op in enumerate(graph.ops) if _may_join(op)})
        if not left:
            return
        dims = typical_dims(graph, TYPICAL)
        calls = {index: call for index, op in left.items() if (call := _call_of(op, graph, dims)) is not None}
        members: dict[int, LoopMember] = {}
        for by_elements in (False, True):  # each asks only of those that still have a neighbour
            left = _with_neighbours({index: op for index, op in left.items() if index in calls})
            for index in [index for index, op in left.items() if (op.definition.scalar is not None) is by_elements]:
                member = _member_of(left[index], calls[index], graph.policy)
                if member is not None:
                    members[index] = member
                else:
                    del calls[index]
        if all(member.elementwise for member in members.values()):
            return  # alone they are another rule's
        ByCost(graph, dims, dict(sorted(members.items()))).fuse()


@dataclass(eq=False)
class LoopMember(Member):
    """An operator that loops compute.

    ``checks``: whether it checks indices.
    ``other_dims``: the values, by identity, that its expression makes with other dims than it infers.
    ``elementwise``: whether it computes the same elements of all results, and adds up none.
    """

    layout: Any
    checks: bool
    other_dims: frozenset[int]
    elementwise: bool


class ByCost(Fusion[LoopMember]):
    """Operators that read each other's results, or the same ones, where loops take less time for both at once."""

    def near(self, index: int) -> list[int]:
        """The members that make what one reads, nearest first; then those before it that read the same."""
        member = self.members[index]
        makers: dict[int, None] = {}
        readers: dict[int, None] = {}
        for slot, value in member.inputs.items():
            spec = self.dims.spec(value)
            if member.placed_at(slot) is None or spec is None or spec.size < LARGE:
                continue
            if value.op is not None:
                makers[self.at[id(value.op)]] = None
            readers |= dict.fromkeys(other for other in self.readers[id(value)] if other < index)
        found = [*sorted(makers, reverse=True), *sorted(readers, reverse=True)]
        return [other for other in dict.fromkeys(found) if other in self.members]

    def may(self, group: frozenset[int]) -> bool:
        """Whether operators could be one: they reduce or move something, on one device, in an order that there is."""
        members = self.of(group)
        if all(member.elementwise for member in members) or len(members) > MAX_OPERATORS:
            return False
        if (
            len({(member.device, member.layout) for member in members}) > 1
            or sum(m.definition.random for m in members) > 1
        ):
            return False
        checks = sum(member.checks for member in members)  # an error names the operator, and nothing is updated then
        if checks > 1 or (checks and any(value.state is not None for m in members for value in m.op.results)):
            return False
        other = frozenset().union(*(member.other_dims for member in members))
        if other and any(id(value) in other for member in members for value in member.inputs.values()):
            return False
        return not self.between(group)

    def loses(self, mine: frozenset[int], theirs: frozenset[int]) -> str | None:
        """Why two kernels are better than one; None if one takes less time, and rounds alike."""
        both, first, second = (self._estimate(group) for group in (mine | theirs, mine, theirs))
        if both is None or first is None or second is None:
            return "loops cannot compute both at once"
        if not both[1] <= first[1] | second[1]:
            return "a sum would be taken in another order"
        before = first[0] + second[0]
        if both[0] <= GAIN * before:
            return None
        return f"one kernel is estimated at {both[0] / 1000:,.0f} us, two at {before / 1000:,.0f}"

    def _estimate(self, group: frozenset[int]) -> Estimate | None:
        """The time of a group as one kernel, and the orders of its reductions; None if loops cannot compute it."""
        call = next(self.members[index].call for index in group)
        if len(group) > 1 or not _traced(call):
            made = self.as_one(group)
            if not made.possible or len(made.attrs) > MOST_NUMBERS:
                return None
            if len(made.inputs) + len(made.stored) > MOST_VARIABLES:
                return None
            call = made.call(call.place)
        attrs = tuple(call.attrs.items()) if len(group) == 1 else ()  # else they are part of the operator
        key = (call.op, call.place, tuple(call.ins.items()), tuple(call.outs.items()), repr(attrs))
        return _estimates.get(key, lambda: [_estimate(call)])[0]

    def operator(self, group: frozenset[int], checks: Operator | None = None) -> GraphOp:
        checking = (self.members[index].op.operator for index in group if self.members[index].checks)
        return super().operator(group, next(checking, checks))


def _may_join(op: GraphOp) -> bool:
    """Whether an operator may be a member by what it is, whatever its dims."""
    own = op.definition
    said = own.scalar is not None or own.expression is not None
    return said and own.epilogue is None and may_join(op) and _updates_in_place(op)


def _with_neighbours(ops: Mapping[int, GraphOp]) -> dict[int, GraphOp]:
    """Those of some operators that read what another of them makes, or reads."""
    sharing: dict[int, list[int]] = defaultdict(list)
    for index, op in ops.items():
        sides: tuple[Sequence[GraphValue | None], ...] = (*op.inputs.values(), *op.outputs.values())
        for value in {*chain.from_iterable(sides)} - {None}:
            sharing[id(value)].append(index)
    near = {index for indices in sharing.values() if len(indices) > 1 for index in indices}
    return {index: op for index, op in ops.items() if index in near}


def _call_of(op: GraphOp, graph: Graph, dims: GenericDims) -> Call | None:
    """The call of an operator, if its values are known and the kernel language is used for such sizes."""
    ins, outs = dims.grouped(op.inputs), dims.grouped(op.outputs)
    if ins is None or not outs:
        return None
    for spec in chain.from_iterable((*ins.values(), *outs.values())):
        if spec.lod_level or spec.kind != "dense":
            return None
    unit = devices.unit(op.operator.hints.get("op_device") or graph.place)
    call = Call(op.definition, ins, outs, op.attrs, unit.place)
    return call if unused("language", call, unit, graph.policy) is None else None


def _member_of(op: GraphOp, call: Call, policy: Policy) -> LoopMember | None:
    assert call.place is not None
    device, layout = op.operator.hints.get("op_device"), op.operator.hints.get(LAYOUT)
    try:
        if not _by_loops(call, layout, devices.unit(call.place), policy):
            return None
        elementwise = not call.of_tensors and not domain_of(call).sums
        fit = dims_fit(call) if _traced(call) else {}
        checks = checks_indices(call)
    except (FluidError, Refused):  # it cannot run here, or not at these sizes; it says so when it is planned
        return None
    other = frozenset(id(values[0]) for slot, values in op.outputs.items() if not fit.get(slot, True))
    return LoopMember(op, call.op, call, device, layout, checks, other, elementwise)


def _traced(call: Call) -> bool:
    """Whether the operator's own expression is what loops would compute: a fused one, or one of tensors."""
    rule = call.op.expression
    return rule is not None and (rule.operators > 0 or call.of_tensors)


def _by_loops(call: Call, layout: str | None, unit: Unit, policy: Policy) -> bool:
    """Whether the place would generate the call's kernel in its kernel language, on memory in a layout."""
    laid = relaid_call(call, layout_named(layout)) if layout is not None else None
    choice = choose(laid[0] if laid is not None else call, unit.place, policy)
    return choice.how == "generated" and choice.capability == "language" and choice.place == unit.place


def _updates_in_place(op: GraphOp) -> bool:
    """Whether all that an operator writes of state is what it reads there; the program keeps no other copy of it."""
    alias = op.definition.must_alias
    for slot, (value,) in op.outputs.items():
        given = op.inputs.get(alias.get(slot, ""), ())
        if value is not None and (value.state is not None or given) and [v.name for v in given] != [value.name]:
            return False
    return True


_estimates: LRUCache[list[Estimate | None]] = LRUCache(1024, "estimates of fused operators")


def _estimate(call: Call) -> Estimate | None:
    assert call.place is not None
    try:
        return estimate(call, devices.unit(call.place))
    except (FluidError, Refused):  # a part is no function of tensors, or not of these
        return None
