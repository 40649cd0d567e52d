"""Minimum s-t cut of a flow network by Dinic's algorithm, and the transfers between two sides that it minimizes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from fluidlite.base.reached import reached

SOURCE, SINK = 0, 1
"""The source and the sink, as nodes."""


class FlowNetwork:
    """A directed graph that is cut in two. The cut costs each arc from the side of ``SOURCE`` to that of ``SINK``."""

    def __init__(self) -> None:
        self._arcs: list[list[int]] = [[], []]
        self._heads: list[int] = []
        self._residual: list[float] = []

    def node(self) -> int:
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, tail: int, head: int, cost: float = inf) -> None:
        """Add an arc; the default cost is infinite: the arc is never cut."""
        if tail == head:
            return
        for start, end, residual in ((tail, head, cost), (head, tail, 0.0)):
            self._arcs[start].append(len(self._heads))
            self._heads.append(end)
            self._residual.append(residual)

    def sink_side(self) -> set[int]:
        """Return the nodes on the side of ``SINK``: the smallest set of minimum cost.

        Raises ValueError if arcs of infinite cost connect the source with the sink.
        """
        while (levels := self._levels()) is not None:
            next_arcs = [0] * len(self._arcs)
            while self._augment(levels, next_arcs):
                pass
        return self._reaching_sink()

    def _levels(self) -> list[int] | None:
        """The BFS level of each node in the residual graph; None if SINK is unreachable."""
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

    def _augment(self, levels: list[int], next_arcs: list[int]) -> bool:
        """Augment one shortest path; ``next_arcs``: by node the index of the first arc that is not a dead end."""
        path: list[int] = []
        node = SOURCE
        while node != SINK:
            arcs = self._arcs[node]
            while next_arcs[node] < len(arcs):
                arc = arcs[next_arcs[node]]
                if self._residual[arc] > 0 and levels[self._heads[arc]] == levels[node] + 1:
                    path.append(arc)
                    node = self._heads[arc]
                    break
                next_arcs[node] += 1
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

    def _reaching_sink(self) -> set[int]:
        """The nodes from which SINK is reachable in the residual graph."""
        residual = self._residual
        return reached([SINK], lambda node: [self._heads[arc] for arc in self._arcs[node] if residual[arc ^ 1] > 0])


class End(NamedTuple):
    """The side on which a value is made or read: that of a node, or a fixed one.

    ``node``: the node whose side decides; None: the side is fixed.
    ``side``: with a node, whether this end is on the node's side (False: always on that of ``SOURCE``); without one,
    whether it is on the side of ``SINK``.
    """

    node: int | None
    side: bool


class TransferredValue(NamedTuple):
    """A value that is transferred once for all readers that are on another side than its maker."""

    cost: float
    maker: End
    readers: Sequence[End]


def minimum_transfers(stay: Sequence[float], go: Sequence[float], values: Iterable[TransferredValue]) -> set[int]:
    """Return the nodes on the side of ``SINK`` for which the total cost is minimal; the smallest such set.

    ``stay``, ``go``: the cost of each node on the side of ``SOURCE``, and on that of ``SINK``.
    """
    network = FlowNetwork()
    nodes = [network.node() for _ in stay]

    def node_of(end: End) -> int:
        if end.node is None:
            return SINK if end.side else SOURCE
        return nodes[end.node] if end.side else SOURCE

    for node, stay_cost, go_cost in zip(nodes, stay, go, strict=True):
        network.arc(node, SINK, stay_cost)
        network.arc(SOURCE, node, go_cost)
    for value in values:
        to_sink, to_source = network.node(), network.node()  # cut where the copy to that side is needed
        network.arc(node_of(value.maker), to_sink, value.cost)
        network.arc(to_source, node_of(value.maker), value.cost)
        for reader in value.readers:
            network.arc(to_sink, node_of(reader))
            network.arc(node_of(reader), to_source)
    sink_side = network.sink_side()
    return {index for index, node in enumerate(nodes) if node in sink_side}
