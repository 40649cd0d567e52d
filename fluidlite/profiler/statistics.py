"""Sums of what was recorded: a row an operator and kernel, copies by place; and what happened when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fluidlite.profiler.sites import Site

MAX_TIMELINE_EVENTS = 500_000
"""Events that a timeline keeps; later ones are in the sums alone."""


@dataclass
class Row:
    """The launches of one operator type by one kernel on one place, or the spans of one name. Times are nanoseconds.

    ``kind``, ``name``, ``kernel``, ``place``: as of :class:`Site`; spans have the kind "run" or "event", and the place
    "host".
    ``own``: ``total`` without the launches of sub-blocks that ran inside.
    """

    kind: str
    name: str
    kernel: str
    place: str
    calls: int = 0
    total: int = 0
    own: int = 0
    max: int = 0
    min: int = 0
    nbytes: int = 0

    @property
    def ave(self) -> float:
        """The mean time of a call."""
        return self.total / self.calls if self.calls else 0.0

    def add(self, calls: int, total: int, own: int, most: int, least: int, nbytes: int) -> None:
        self.min = min(self.min, least) if self.calls else least
        self.max = max(self.max, most)
        self.calls += calls
        self.total += total
        self.own += own
        self.nbytes += nbytes


COPIES = ("copy_in", "copy_out", "copy_within", "copy_peer", "bytes_in", "bytes_out", "launches")
"""What is counted of a context."""


class Timings(NamedTuple):
    """Times of some passes over the same launches.

    ``inner``: by launch, the time of the launches inside of it.
    """

    durations: Any
    inner: Mapping[int, int]


@dataclass
class Statistics:
    """All rows, in the order in which they came up; copies by :data:`COPIES`, and how times were taken, by place."""

    rows: dict[tuple[str, str, str, str], Row] = field(default_factory=dict)
    transfers: dict[str, Counter[str]] = field(default_factory=dict)
    methods: dict[str, str] = field(default_factory=dict)

    def _row(self, kind: str, name: str, kernel: str, place: str) -> Row:
        key = kind, name, kernel, place
        found = self.rows.get(key)
        if found is None:
            found = self.rows[key] = Row(*key)
        return found

    def add(self, sites: Sequence[Site], timings: Timings) -> None:
        """Count launches in; there may be fewer than sites, where a run failed."""
        durations = timings.durations
        calls, totals = len(durations), durations.sum(0).tolist()
        for at, (total, most, least) in enumerate(
            zip(totals, durations.max(0).tolist(), durations.min(0).tolist(), strict=True)
        ):
            site = sites[at]
            row = self._row(site.kind, site.name, site.kernel, site.place)
            row.add(calls, total, total - timings.inner.get(at, 0), most, least, calls * site.nbytes)

    def add_copies(self, place: str, before: Sequence[int], after: Sequence[int]) -> None:
        """Count in what came between two states of a context's counts."""
        counts = self.transfers.setdefault(place, Counter())
        for name, old, new in zip(COPIES, before, after, strict=True):
            counts[name] += new - old

    def add_span(self, kind: str, name: str, time: int) -> None:
        self._row(kind, name, "", "host").add(1, time, time, time, time, 0)


class Block(NamedTuple):
    """Passes over the same launches: what they are, their queues (place, number), threads of passes, and the times."""

    sites: Sequence[Site]
    queues: Sequence[tuple[str, int]]
    threads: Sequence[int]
    begins: Any
    ends: Any


class Span(NamedTuple):
    kind: str
    name: str
    thread: int
    began: int
    ended: int


@dataclass
class Timeline:
    """What happened when, up to so many events.

    ``dropped``: events that came later.
    """

    blocks: list[Block] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    dropped: int = 0
    _events: int = 0

    def _fits(self, events: int) -> bool:
        if self._events + events > MAX_TIMELINE_EVENTS:
            self.dropped += events
            return False
        self._events += events
        return True

    def add(
        self, sites: Sequence[Site], queues: Sequence[tuple[str, int]], threads: Sequence[int], begins: Any, ends: Any
    ) -> None:
        if self._fits(begins.size):
            self.blocks.append(Block(sites, queues, threads, begins, ends))

    def add_span(self, kind: str, name: str, thread: int, began: int, ended: int) -> None:
        if self._fits(1):
            self.spans.append(Span(kind, name, thread, began, ended))
