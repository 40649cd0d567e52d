"""What a profiler records: the launches of all threads with their times, and spans of the host."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from operator import attrgetter
from time import perf_counter_ns
from typing import Any, TypeVar

import numpy as np

from fluidlite.base.fork import new_lock
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.planning.plan import Step
from fluidlite.platform.context import Context
from fluidlite.platform.device_context import Stamp
from fluidlite.platform.place import Place
from fluidlite.profiler.sites import Site, site_of
from fluidlite.profiler.statistics import COPIES, Statistics, Timeline, Timings

Item = TypeVar("Item")
Mark = int | Stamp

MAX_PENDING_MARKS = 16_384
"""Reads of clocks that wait to be summed up."""
MAX_PENDING_STAMPS = 2_048
"""Timed events of devices that wait to be read: each is an object of the driver."""
MAX_KNOWN_LISTS = 1_024
"""Lists of launches whose sites are kept."""

_counts = attrgetter(*COPIES)

CLOCK, EVENTS, WAITS = "clock", "events", "waits"
METHODS = {
    CLOCK: "the host's clock around each call",
    EVENTS: "timed events in its queue",
    WAITS: "the host's clock, with a wait for the queue before each read",
}
"""How the time of a launch is taken."""


class _Record:
    """One pass over the launches of an executable or a plan.

    ``marks`` has one read of a clock more than launches are done; ``begins``, where devices take times, another for
    each launch. ``inner`` has the time of the records that ran inside of a launch.
    """

    __slots__ = ("at", "begins", "inner", "marks", "parent", "sites", "thread")

    def __init__(self, sites: tuple[Site, ...], parent: _Record | None) -> None:
        self.sites = sites
        self.thread = threading.get_ident()
        self.marks: list[Any] = []
        self.begins: list[Any] | None = None
        self.inner: dict[int, int] = {}
        self.parent = parent
        self.at = len(parent.marks) - 1 if parent is not None else 0


class _Run:
    __slots__ = ("after", "before", "began", "contexts", "depth", "ended", "place", "recording", "thread")

    def __init__(self, recording: Recording, place: Place, contexts: Sequence[Context]) -> None:
        self.recording, self.place, self.contexts = recording, place, contexts

    def __enter__(self) -> None:
        depths = self.recording.depths
        self.thread = threading.get_ident()
        self.depth = depths.get(self.thread, 0)
        depths[self.thread] = self.depth + 1
        self.before = [_counts(context.counts) for context in self.contexts] if not self.depth else []
        self.began = perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        self.ended = perf_counter_ns()
        self.after = [_counts(context.counts) for context in self.contexts] if not self.depth else []
        self.recording.end_run(self)


class Recording:
    """The timer of one profile.

    ``host_only``: take the time for which calls keep the host, and do not wait for queues.
    """

    def __init__(self, host_only: bool = False) -> None:
        self._host_only = host_only
        self._lock = new_lock()
        self._stacks: dict[int, list[_Record]] = {}
        self.depths: dict[int, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._pending: list[_Record] = []
        self._runs: list[_Run] = []
        self._reads = self._stamps = 0
        self._sites: dict[int, tuple[Sequence[Step], tuple[Site, ...], bool]] = {}
        self._references: dict[Context, tuple[Stamp, int]] = {}
        self._queues: dict[Context, tuple[str, int]] = {}
        self._methods: dict[Context, str] = {}
        self.lost = 0
        self.statistics = Statistics()
        self.timeline = Timeline()
        self.began = perf_counter_ns()

    def reset(self) -> None:
        """Forget what was recorded; what runs now is recorded from its next launches on."""
        with self._lock:
            self._clear()

    # What the runs call

    def run(self, frame: Frame, contexts: Sequence[Context]) -> _Run:
        """Record a run as a span of the host, and the copies that it makes."""
        return _Run(self, frame.place, contexts)

    def timed(self, frame: Frame, owners: Sequence[Step], items: Iterable[Item]) -> Generator[Item]:
        """Yield items, and read a clock between them: the host's, or for items on a device that has them its events."""
        sites, plain = self._sites_of(frame, owners, items)
        stack = self._stacks.setdefault(threading.get_ident(), [])
        record = _Record(sites, stack[-1] if stack else None)
        stack.append(record)
        mark, clock = record.marks.append, perf_counter_ns
        try:
            mark(clock())
            if plain:
                for item in items:
                    yield item
                    mark(clock())
            else:
                begins: list[Mark] = []
                record.begins = begins
                for item, site in zip(items, sites, strict=True):
                    begins.append(self._read(site.context, after=False))
                    yield item
                    mark(self._read(site.context, after=True))
        finally:
            stack.pop()
            self._ended(record)

    def end_run(self, run: _Run) -> None:
        """Note a run that ended."""
        self.depths[run.thread] = run.depth
        if not run.depth:
            self.depths.pop(run.thread, None)
        self._runs.append(run)
        self._reads += 2
        if self._reads > MAX_PENDING_MARKS:
            self.sum_up()

    def _add_run(self, run: _Run) -> None:
        if run.began < self.began:
            return
        name = f"{'sub-block' if run.depth else 'run'} on {run.place}"
        self.statistics.add_span("run", name, run.ended - run.began)
        self.timeline.add_span("run", name, run.thread, run.began, run.ended)
        for context, before, after in zip(run.contexts, run.before, run.after, strict=False):
            if before != after:
                self.statistics.add_copies(str(context.place), before, after)

    def add_span(self, kind: str, name: str, began: int, ended: int) -> None:
        """Record a span of this thread, in nanoseconds of the host's clock."""
        with self._lock:
            if began >= self.began:
                self.statistics.add_span(kind, name, ended - began)
                self.timeline.add_span(kind, name, threading.get_ident(), began, ended)

    # Clocks

    def _method(self, context: Context) -> str:
        found = self._methods.get(context)
        if found is None:
            found = self._methods[context] = self._choose(context)
            with self._lock:
                kind = str(context.place)
                number = sum(place == kind for place, _ in self._queues.values())
                self._queues.setdefault(context, (kind, number))
                self.statistics.methods[kind] = METHODS[found]
        return found

    def _choose(self, context: Context) -> str:
        if self._host_only or (context.array is not None and context.array.eager):
            return CLOCK  # a value can be read without a wait: a kernel is done when its call returns
        context.wait()
        reference = context.stamp()
        if reference is None:
            return WAITS
        reference.wait()
        self._references[context] = reference, perf_counter_ns()
        return EVENTS

    def _read(self, context: Context, after: bool) -> Mark:
        method = self._method(context)
        if method == EVENTS:
            stamp = context.stamp()
            assert stamp is not None
            return stamp
        if method == WAITS and after:
            context.wait()
        return perf_counter_ns()

    # Summing up

    def _sites_of(self, frame: Frame, owners: Sequence[Step], items: Iterable[Any]) -> tuple[tuple[Site, ...], bool]:
        """The sites of some launches, and whether the host's clock does for all of them."""
        known = self._sites.get(id(owners))
        if known is not None and known[0] is owners:
            return known[1], known[2]
        sites = tuple([site_of(owner, item, frame) for owner, item in zip(owners, items, strict=True)])
        if len(self._sites) >= MAX_KNOWN_LISTS:
            self._sites.clear()
        plain = {self._method(site.context) for site in sites} <= {CLOCK}
        self._sites[id(owners)] = owners, sites, plain
        return sites, plain

    def _ended(self, record: _Record) -> None:
        self._pending.append(record)
        self._reads += len(record.marks)
        if record.begins is not None:
            self._stamps += 2 * len(record.begins)
        if self._reads > MAX_PENDING_MARKS or self._stamps > MAX_PENDING_STAMPS:
            self.sum_up()

    def sum_up(self) -> None:
        """Take what was recorded into the statistics and the timeline."""
        with self._lock:
            pending, self._pending = self._pending, []
            runs, self._runs = self._runs, []
            self._reads = self._stamps = 0
            groups: dict[tuple[int, int], list[tuple[_Record, Any, Any]]] = {}
            for record in pending:  # in the order in which they ended: what ran inside of another comes first
                begins, ends = self._times(record)
                if not len(begins) or begins[0] < self.began:
                    continue
                if record.parent is not None:
                    inner = record.parent.inner
                    inner[record.at] = inner.get(record.at, 0) + int(ends[-1] - begins[0])
                groups.setdefault((id(record.sites), len(begins)), []).append((record, begins, ends))
            for found in groups.values():
                self._add(found)
            for run in runs:
                self._add_run(run)

    def _add(self, found: Sequence[tuple[_Record, Any, Any]]) -> None:
        sites = found[0][0].sites
        begins, ends = np.stack([each[1] for each in found]), np.stack([each[2] for each in found])
        inner: dict[int, int] = {}
        for record, _, _ in found:
            for at, time in record.inner.items():
                inner[at] = inner.get(at, 0) + time
        self.statistics.add(sites, Timings(ends - begins, inner))
        queues = [self._queues[site.context] for site in sites]
        self.timeline.add(sites, queues, [each[0].thread for each in found], begins, ends)

    def _times(self, record: _Record) -> tuple[Any, Any]:
        """Begins and ends of the launches of a record that were done, in nanoseconds of the host's clock."""
        if record.begins is None:
            marks = np.array(record.marks, np.int64)
            return marks[:-1], marks[1:]
        done = len(record.marks) - 1
        try:
            begins = [self._time(s.context, b) for s, b in zip(record.sites, record.begins[:done], strict=False)]
            ends = [self._time(s.context, e) for s, e in zip(record.sites, record.marks[1:], strict=False)]
        except Exception:  # a device that is gone has no times; the run has said so
            self.lost += done
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.array(begins, np.int64), np.array(ends, np.int64)

    def _time(self, context: Context, mark: Mark) -> int:
        if isinstance(mark, int):
            return mark
        reference, at = self._references[context]
        mark.wait()
        return at + round(1e9 * mark.seconds_since(reference))

    def close(self) -> None:
        """Sum up, and let go of plans and contexts."""
        self.sum_up()
        with self._lock:
            self._sites.clear()
            self._references.clear()
            self._queues.clear()
            self._methods.clear()

    @property
    def methods(self) -> Mapping[str, str]:
        """How times were taken, by place."""
        return self.statistics.methods
