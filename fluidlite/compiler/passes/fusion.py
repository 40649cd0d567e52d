"""Fusion of operators into one whose expression is the composition of theirs; subclasses define what may be fused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp
from fluidlite.compiler.passes.fuse_dims import GenericDims
from fluidlite.compiler.passes.fused_group import FusedGroup, Member
from fluidlite.compiler.passes.groups import Groups, scheduled
from fluidlite.program.operator import NOT_FUSED

MAX_VARIABLES = 24
"""Values that one kernel loads and stores: each needs an address, and often a register."""
MAX_NUMBERS = 48
"""Float attributes and constants of one kernel: each is a kernel argument."""

M = TypeVar("M", bound=Member)


class Fusion(Groups, Generic[M]):
    """Groups of a graph's operators, grown greedily in the order in which operators run.

    ``members``: the operators that may be fused, by index.
    """

    def __init__(self, graph: Graph, dims: GenericDims, members: Mapping[int, M]) -> None:
        super().__init__(graph)
        self.dims, self.members = dims, members
        self.reasons: dict[tuple[int, int], str] = {}

    # The rule

    def candidates(self, index: int) -> Sequence[int]:
        """The members with which a member may be fused, preferred ones first."""
        raise NotImplementedError

    def can_fuse(self, group: frozenset[int]) -> bool:
        """Whether operators can be one."""
        raise NotImplementedError

    def refusal(self, own_group: frozenset[int], other_group: frozenset[int]) -> str | None:
        """Why two kernels are better than one, or None."""
        return None

    # Application of the rule

    def fuse(self) -> None:
        """Grow groups by the rule, and replace each group in the graph by one operator."""
        self._grow()
        for group in self.fused_groups():
            self.graph.ops[max(group)] = self.operator(group)
        self.graph.ops = [self.graph.ops[last] for last in scheduled(self.after, self.group)]

    def _grow(self) -> None:
        for index in self.members:
            for other in self.candidates(index):
                own_group, other_group = self.group[index], self.group[other]
                if own_group is other_group or not self.can_fuse(own_group | other_group):
                    continue
                reason = self.refusal(own_group, other_group)
                if reason is None:
                    self.join(own_group | other_group)
                else:
                    self.reasons[index, other] = reason
        for (index, other), reason in self.reasons.items():
            if self.group[index] is not self.group[other]:
                self._record_reason(index, other, reason)

    def _record_reason(self, index: int, other: int, reason: str) -> None:
        """Record, for reports, why two operators are not fused."""
        op, neighbour = self.graph.ops[index], self.graph.ops[other].operator
        notes = (*op.hints.get(NOT_FUSED, ()), f"not fused with {neighbour}: {reason}")
        op.set_hint(NOT_FUSED, notes)

    def members_of(self, group: Iterable[int]) -> list[M]:
        """The members of a group, in the order in which they run."""
        return [self.members[index] for index in sorted(group)]

    def fused_group(self, group: Iterable[int]) -> FusedGroup:
        return FusedGroup(self, self.members_of(group), self.dims)

    def operator(self, group: frozenset[int]) -> GraphOp:
        """The fused operator of a group."""
        return self.fused_group(group).operator()
