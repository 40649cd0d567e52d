"""The least cut of a directed graph with costs: which nodes go with one end, which with the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from fluidlite.base.reached import reached

ONE, OTHER = 0, 1
"""The two ends."""


class Cut:
    """A graph whose nodes are parted in two. An arc that leads from the side of ``ONE`` to that of ``OTHER`` costs."""

    def __init__(self) -> None:
        self._arcs: list[list[int]] = [[], []]
        self._heads: list[int] = []
        self._room: list[float] = []

    def node(self) -> int:
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, tail: int, head: int, cost: float = inf) -> None:
        """Add an arc; one without a cost is never cut."""
        if tail == head:
            return
        for start, end, room in ((tail, head, cost), (head, tail, 0.0)):
            self._arcs[start].append(len(self._heads))
            self._heads.append(end)
            self._room.append(room)

    def others(self) -> set[int]:
        """Return the nodes that go with ``OTHER``; as few as the least cost allows.

        Raises ValueError if arcs that are never cut lead from one end to the other.
        """
        while (levels := self._levels()) is not None:
            at = [0] * len(self._arcs)
            while self._push(levels, at):
                pass
        return self._reaching()

    def _levels(self) -> list[int] | None:
        """Steps from ONE to each node over arcs with room; None if OTHER is out of reach."""
        levels = [-1] * len(self._arcs)
        levels[ONE] = 0
        queue = deque([ONE])
        while queue:
            node = queue.popleft()
            for arc in self._arcs[node]:
                head = self._heads[arc]
                if self._room[arc] > 0 and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    queue.append(head)
        return levels if levels[OTHER] >= 0 else None

    def _push(self, levels: list[int], at: list[int]) -> bool:
        """Send what fits along one shortest path; ``at`` notes the arcs of each node that lead nowhere."""
        path: list[int] = []
        node = ONE
        while node != OTHER:
            arcs = self._arcs[node]
            while at[node] < len(arcs):
                arc = arcs[at[node]]
                if self._room[arc] > 0 and levels[self._heads[arc]] == levels[node] + 1:
                    path.append(arc)
                    node = self._heads[arc]
                    break
                at[node] += 1
            else:
                if not path:
                    return False
                levels[node] = -1
                node = self._heads[path.pop() ^ 1]
        amount = min(self._room[arc] for arc in path)
        if amount == inf:
            raise ValueError("the ends cannot be parted")
        for arc in path:
            self._room[arc] -= amount
            self._room[arc ^ 1] += amount
        return True

    def _reaching(self) -> set[int]:
        """The nodes from which OTHER is reached over arcs with room."""
        return reached([OTHER], lambda node: [self._heads[arc] for arc in self._arcs[node] if self._room[arc ^ 1] > 0])


class End(NamedTuple):
    """Where a value is made or read: a node's side (``follows``), or a fixed side.

    ``node``: which node's choice it depends on; None: on none.
    ``side``: for a node: whether this end goes with it to ``OTHER`` (else it stays with ``ONE``). For none: whether it
    is with ``OTHER``.
    """

    node: int | None
    side: bool


class Passed(NamedTuple):
    """A value that is brought to the other side, once for all readers there, where its maker is not."""

    cost: float
    maker: End
    readers: Sequence[End]


def fewest_moves(stay: Sequence[float], go: Sequence[float], values: Iterable[Passed]) -> set[int]:
    """Return the nodes that go with ``OTHER``, so that costs are least; as few as that allows.

    ``stay``, ``go``: for each node, what it costs with ``ONE``, and with ``OTHER``.
    """
    cut = Cut()
    nodes = [cut.node() for _ in stay]

    def of(end: End) -> int:
        if end.node is None:
            return OTHER if end.side else ONE
        return nodes[end.node] if end.side else ONE

    for node, staying, going in zip(nodes, stay, go, strict=True):
        cut.arc(node, OTHER, staying)
        cut.arc(ONE, node, going)
    for value in values:
        there, back = cut.node(), cut.node()  # copies on the other side of what is made with ONE, and the reverse
        cut.arc(of(value.maker), there, value.cost)
        cut.arc(back, of(value.maker), value.cost)
        for reader in value.readers:
            cut.arc(there, of(reader))
            cut.arc(of(reader), back)
    others = cut.others()
    return {index for index, node in enumerate(nodes) if node in others}
