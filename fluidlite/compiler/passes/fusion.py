"""Fusion: operators become one, whose expression is theirs put together. What joins, a rule says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp
from fluidlite.compiler.passes.fuse_dims import GenericDims
from fluidlite.compiler.passes.groups import Groups, scheduled
from fluidlite.compiler.passes.joined import Joined, Member
from fluidlite.program.operator import NOT_FUSED, Operator

MOST_VARIABLES = 24
"""Values that one kernel loads and stores: each is an address, and often a register."""
MOST_NUMBERS = 48
"""Float attributes and constants of one kernel: each is an argument."""

M = TypeVar("M", bound=Member)


class Fusion(Groups, Generic[M]):
    """Groups of a graph's members, grown greedily in the order in which operators run.

    ``members``: the operators that may be one of a group, by index.
    """

    def __init__(self, graph: Graph, dims: GenericDims, members: Mapping[int, M]) -> None:
        super().__init__(graph)
        self.dims, self.members = dims, members
        self.reasons: dict[tuple[int, int], str] = {}

    # The rule

    def near(self, index: int) -> Sequence[int]:
        """The members that one may join, those that it is to join first."""
        raise NotImplementedError

    def may(self, group: frozenset[int]) -> bool:
        """Whether operators could be one."""
        raise NotImplementedError

    def loses(self, mine: frozenset[int], theirs: frozenset[int]) -> str | None:
        """Why two kernels are better than one, or None."""
        return None

    # What follows of it

    def fuse(self) -> None:
        """Join what the rule joins, and put the operators that groups become in the graph."""
        self._grow()
        for group in self.joined():
            self.graph.ops[max(group)] = self.operator(group)
        self.graph.ops = [self.graph.ops[last] for last in scheduled(self.after, self.group)]

    def _grow(self) -> None:
        for index in self.members:
            for other in self.near(index):
                mine, theirs = self.group[index], self.group[other]
                if mine is theirs or not self.may(mine | theirs):
                    continue
                reason = self.loses(mine, theirs)
                if reason is None:
                    self.join(mine | theirs)
                else:
                    self.reasons[index, other] = reason
        for (index, other), reason in self.reasons.items():
            if self.group[index] is not self.group[other]:
                self._note(index, other, reason)

    def _note(self, index: int, other: int, reason: str) -> None:
        """Keep for reports why two operators have kernels of their own."""
        op, neighbour = self.graph.ops[index], self.graph.ops[other].operator
        notes = (*op.hints.get(NOT_FUSED, ()), f"not fused with {neighbour}: {reason}")
        op.set_hint(NOT_FUSED, notes)

    def of(self, group: Iterable[int]) -> list[M]:
        """The members of a group, in the order in which they run."""
        return [self.members[index] for index in sorted(group)]

    def as_one(self, group: Iterable[int]) -> Joined:
        return Joined(self, self.of(group), self.dims)

    def operator(self, group: frozenset[int], checks: Operator | None = None) -> GraphOp:
        """The operator that a group becomes; ``checks`` is the one of them that checks indices."""
        return self.as_one(group).operator(checks)
