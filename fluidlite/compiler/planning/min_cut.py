"""The minimum cut of a directed graph with costs, by Dinic's algorithm: which nodes go with the source or the sink."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from fluidlite.base.reached import reached

SOURCE, SINK = 0, 1
"""The two ends, as nodes."""


class Cut:
    """A graph whose nodes are parted in two. An arc from the side of ``SOURCE`` to that of ``SINK`` costs."""

    def __init__(self) -> None:
        self._arcs: list[list[int]] = [[], []]
        self._heads: list[int] = []
        self._residual: list[float] = []

    def node(self) -> int:
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, tail: int, head: int, cost: float = inf) -> None:
        """Add an arc; one without a cost is never cut."""
        if tail == head:
            return
        for start, end, residual in ((tail, head, cost), (head, tail, 0.0)):
            self._arcs[start].append(len(self._heads))
            self._heads.append(end)
            self._residual.append(residual)

    def sink_side(self) -> set[int]:
        """Return the nodes that go with ``SINK``; as few as the least cost allows.

        Raises ValueError if arcs that are never cut lead from one end to the other.
        """
        while (levels := self._levels()) is not None:
            at = [0] * len(self._arcs)
            while self._push(levels, at):
                pass
        return self._reaching()

    def _levels(self) -> list[int] | None:
        """Steps from SOURCE to each node over arcs with capacity left; None if SINK is out of reach."""
        levels = [-1] * len(self._arcs)
        levels[SOURCE] = 0
        queue = deque([SOURCE])
        while queue:
            node = queue.popleft()
            for arc in self._arcs[node]:
                head = self._heads[arc]
                if self._residual[arc] > 0 and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    queue.append(head)
        return levels if levels[SINK] >= 0 else None

    def _push(self, levels: list[int], at: list[int]) -> bool:
        """Send what fits along one shortest path; ``at`` notes the arcs of each node that lead nowhere."""
        path: list[int] = []
        node = SOURCE
        while node != SINK:
            arcs = self._arcs[node]
            while at[node] < len(arcs):
                arc = arcs[at[node]]
                if self._residual[arc] > 0 and levels[self._heads[arc]] == levels[node] + 1:
                    path.append(arc)
                    node = self._heads[arc]
                    break
                at[node] += 1
            else:
                if not path:
                    return False
                levels[node] = -1
                node = self._heads[path.pop() ^ 1]
        amount = min(self._residual[arc] for arc in path)
        if amount == inf:
            raise ValueError("the ends cannot be parted")
        for arc in path:
            self._residual[arc] -= amount
            self._residual[arc ^ 1] += amount
        return True

    def _reaching(self) -> set[int]:
        """The nodes from which SINK is reached over arcs with capacity left."""
        left = self._residual
        return reached([SINK], lambda node: [self._heads[arc] for arc in self._arcs[node] if left[arc ^ 1] > 0])


class End(NamedTuple):
    """Where a value is made or read: a node's side, or a fixed side.

    ``node``: which node's choice it depends on; None: on none.
    ``side``: for a node: whether this end goes with it to ``SINK`` (else it stays with ``SOURCE``). For none: whether
    it is with ``SINK``.
    """

    node: int | None
    side: bool


class Passed(NamedTuple):
    """A value that is brought to the other side, once for all readers there, where its maker is not."""

    cost: float
    maker: End
    readers: Sequence[End]


def fewest_moves(stay: Sequence[float], go: Sequence[float], values: Iterable[Passed]) -> set[int]:
    """Return the nodes that go with ``SINK``, so that costs are least; as few as that allows.

    ``stay``, ``go``: for each node, what it costs with ``SOURCE``, and with ``SINK``.
    """
    cut = Cut()
    nodes = [cut.node() for _ in stay]

    def of(end: End) -> int:
        if end.node is None:
            return SINK if end.side else SOURCE
        return nodes[end.node] if end.side else SOURCE

    for node, staying, going in zip(nodes, stay, go, strict=True):
        cut.arc(node, SINK, staying)
        cut.arc(SOURCE, node, going)
    for value in values:
        there, back = cut.node(), cut.node()  # copies on the other side of what is made with SOURCE, and the reverse
        cut.arc(of(value.maker), there, value.cost)
        cut.arc(back, of(value.maker), value.cost)
        for reader in value.readers:
            cut.arc(there, of(reader))
            cut.arc(of(reader), back)
    others = cut.sink_side()
    return {index for index, node in enumerate(nodes) if node in others}
