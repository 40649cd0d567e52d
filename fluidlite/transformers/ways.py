"""Ways: the straight ways of a replay, by how they are called."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from fluidlite.base.fork import new_rlock
from fluidlite.transformers.direct import NO_WAY, Direct


class Lane:
    """Ways that are called alike.

    Attributes
    ----------
    first : Direct
        The one used last: try it before the others.
    ways : tuple of Direct
        All, the one used last first.
    """

    __slots__ = ("first", "kept", "ways")

    def __init__(self, kept: bool = False) -> None:
        self.first: Direct = NO_WAY
        self.ways: tuple[Direct, ...] = ()
        self.kept = kept

    def set(self, ways: tuple[Direct, ...]) -> None:
        """Replace the ways."""
        self.ways = ways
        self.first = ways[0] if ways else NO_WAY

    def others(self, *given: Any) -> Any:
        """Call the ways behind the first, and put the one that could be taken before it; None: there is none."""
        for way in self.ways[1:]:
            found = way.call(*given)
            if found is not None:
                self.set((way, *(other for other in self.ways if other is not way)))
                return found
        return None


class Ways:
    """Lanes by key."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane] = {}
        self._lock = new_rlock()  # scopes that end while it is held come back here
        self.get = self._lanes.get

    def lane(self, key: Hashable) -> Lane:
        """The lane of a key, for one who keeps it."""
        with self._lock:
            lane = self._lanes.setdefault(key, Lane(kept=True))
            lane.kept = True
            return lane

    def put(self, way: Direct) -> None:
        """Put a new way first. There are no more of them than bound programs, whose number is bounded."""
        with self._lock:
            lane = self._lanes.setdefault(way.key, Lane())
            lane.set((way, *(other for other in lane.ways if other.open)))

    def sweep(self) -> None:
        """Drop ways whose memory is gone."""
        with self._lock:
            for key, lane in list(self._lanes.items()):
                if not all(way.open for way in lane.ways):
                    lane.set(tuple([way for way in lane.ways if way.open]))
                if not lane.ways and not lane.kept:
                    del self._lanes[key]

    def close(self) -> None:
        """Close all, so that nothing holds memory by them."""
        with self._lock:
            for lane in self._lanes.values():
                for way in lane.ways:
                    way.bound.block_way()
            self.sweep()

    def all(self) -> list[Direct]:
        """Every way that is open."""
        return [way for lane in list(self._lanes.values()) for way in lane.ways if way.open]
