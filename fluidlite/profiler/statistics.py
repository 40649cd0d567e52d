"""Statistics of a profile: one row for each operator and kernel, copies by place; and the timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fluidlite.profiler.sites import Site

MAX_TIMELINE_EVENTS = 500_000
"""Maximum number of events of a timeline; later ones are only in the statistics."""


@dataclass
class ProfileRow:
    """The launches of one operator type by one kernel on one place, or the spans of one name; times in nanoseconds.

    ``kind``, ``name``, ``kernel``, ``place``: as of :class:`Site`; spans have the kind "run" or "event", and the place
    "host".
    ``own``: ``total`` without inner launches, those of sub-blocks.
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

    def add(self, calls: int, total: int, own: int, longest: int, shortest: int, nbytes: int) -> None:
        self.min = min(self.min, shortest) if self.calls else shortest
        self.max = max(self.max, longest)
        self.calls += calls
        self.total += total
        self.own += own
        self.nbytes += nbytes


COPIES = ("copy_in", "copy_out", "copy_within", "copy_peer", "bytes_in", "bytes_out", "launches")
"""Counters of a context."""


class Timings(NamedTuple):
    """Times of several passes over the same launches.

    ``inner``: time of the inner launches of each launch.
    """

    durations: Any
    inner: Mapping[int, int]


@dataclass
class Statistics:
    """All rows, in the order of first calls; by place, the :data:`COPIES` and the method of time measurement."""

    rows: dict[tuple[str, str, str, str], ProfileRow] = field(default_factory=dict)
    transfers: dict[str, Counter[str]] = field(default_factory=dict)
    methods: dict[str, str] = field(default_factory=dict)

    def _row(self, kind: str, name: str, kernel: str, place: str) -> ProfileRow:
        key = kind, name, kernel, place
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = ProfileRow(*key)
        return row

    def add(self, sites: Sequence[Site], timings: Timings) -> None:
        """Add launches; they may be fewer than sites if a run failed."""
        durations = timings.durations
        calls, totals = len(durations), durations.sum(0).tolist()
        for at, (total, longest, shortest) in enumerate(
            zip(totals, durations.max(0).tolist(), durations.min(0).tolist(), strict=True)
        ):
            site = sites[at]
            row = self._row(site.kind, site.name, site.kernel, site.place)
            row.add(calls, total, total - timings.inner.get(at, 0), longest, shortest, calls * site.nbytes)

    def add_copies(self, place: str, before: Sequence[int], after: Sequence[int]) -> None:
        """Add the difference of a context's counters between two times."""
        counts = self.transfers.setdefault(place, Counter())
        for name, old, new in zip(COPIES, before, after, strict=True):
            counts[name] += new - old

    def add_span(self, kind: str, name: str, time: int) -> None:
        self._row(kind, name, "", "host").add(1, time, time, time, time, 0)


class LaunchBatch(NamedTuple):
    """Passes over the same launches: sites and queues (place, number) of launches, threads of passes, and times."""

    sites: Sequence[Site]
    queues: Sequence[tuple[str, int]]
    threads: Sequence[int]
    begins: Any
    ends: Any


class HostSpan(NamedTuple):
    kind: str
    name: str
    thread: int
    began: int
    ended: int


@dataclass
class Timeline:
    """Events with times, at most :data:`MAX_TIMELINE_EVENTS`.

    ``dropped``: number of later events.
    """

    batches: list[LaunchBatch] = field(default_factory=list)
    spans: list[HostSpan] = field(default_factory=list)
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
            self.batches.append(LaunchBatch(sites, queues, threads, begins, ends))

    def add_span(self, kind: str, name: str, thread: int, began: int, ended: int) -> None:
        if self._fits(1):
            self.spans.append(HostSpan(kind, name, thread, began, ended))
