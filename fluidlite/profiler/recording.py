"""The recorder of the profiler: times of the launches of all threads, and spans of the host."""

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
"""Maximum number of clock reads before they are added to the statistics."""
MAX_PENDING_STAMPS = 2_048
"""Maximum number of unread device events, each of which is an object of the driver."""
MAX_CACHED_SITE_LISTS = 1_024
"""Maximum number of lists of launches whose sites are cached."""

_counts = attrgetter(*COPIES)

CLOCK, EVENTS, WAITS = "clock", "events", "waits"
METHODS = {
    CLOCK: "the host's clock around each call",
    EVENTS: "timed events in its queue",
    WAITS: "the host's clock, with a wait for the queue before each read",
}
"""Methods to measure the time of a launch."""


class _LaunchRecord:
    """One pass over the launches of an executable or a plan.

    ``marks``: clock reads: one before the first launch, and one after each.
    ``begins``: with device events, another read before each launch.
    ``inner``: time of the records that ran inside a launch, by launch.
    """

    __slots__ = ("at", "begins", "inner", "marks", "parent", "sites", "thread")

    def __init__(self, sites: tuple[Site, ...], parent: _LaunchRecord | None) -> None:
        self.sites = sites
        self.thread = threading.get_ident()
        self.marks: list[Any] = []
        self.begins: list[Any] | None = None
        self.inner: dict[int, int] = {}
        self.parent = parent
        self.at = len(parent.marks) - 1 if parent is not None else 0


class _RunRecord:
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

    ``host_only``: measure the time of calls on the host, without waits for queues.
    """

    def __init__(self, host_only: bool = False) -> None:
        self._host_only = host_only
        self._lock = new_lock()
        self._stacks: dict[int, list[_LaunchRecord]] = {}
        self.depths: dict[int, int] = {}
        self._closed = False
        self._clear()

    def _clear(self) -> None:
        self._pending: list[_LaunchRecord] = []
        self._runs: list[_RunRecord] = []
        self._reads = self._stamps = 0
        self._sites: dict[tuple[int | Context, ...], tuple[Sequence[Step], tuple[Site, ...], bool]] = {}
        self._references: dict[Context, tuple[Stamp, int]] = {}
        self._queues: dict[Context, tuple[str, int]] = {}
        self._methods: dict[Context, str] = {}
        self.lost = 0
        self.statistics = Statistics()
        self.timeline = Timeline()
        self.began = perf_counter_ns()

    def reset(self) -> None:
        """Discard all records; runs in progress are recorded from their next launches on."""
        with self._lock:
            self._clear()

    # Called by runs

    def run(self, frame: Frame, contexts: Sequence[Context]) -> _RunRecord:
        """Return a context manager that records a run as a span of the host, with its copies."""
        return _RunRecord(self, frame.place, contexts)

    def timed(self, frame: Frame, owners: Sequence[Step], items: Iterable[Item]) -> Generator[Item]:
        """Yield items, and read a clock between them: the host's, or that of device events if the device has them."""
        sites, uses_host_clock = self._sites_of(frame, owners, items)
        stack = self._stacks.setdefault(threading.get_ident(), [])
        record = _LaunchRecord(sites, stack[-1] if stack else None)
        stack.append(record)
        mark, clock = record.marks.append, perf_counter_ns
        try:
            mark(clock())
            if uses_host_clock:
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
            self._add_pending(record)

    def end_run(self, run: _RunRecord) -> None:
        """Add a run that has ended."""
        self.depths[run.thread] = run.depth
        if not run.depth:
            self.depths.pop(run.thread, None)
        self._runs.append(run)
        self._reads += 2
        if self._reads > MAX_PENDING_MARKS:
            self.sum_up()

    def _add_run(self, run: _RunRecord) -> None:
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
        method = self._methods.get(context)
        if method is None:
            method = self._methods[context] = self._choose_method(context)
            with self._lock:
                place_name = str(context.place)
                number = sum(place == place_name for place, _ in self._queues.values())
                self._queues.setdefault(context, (place_name, number))
                self.statistics.methods[place_name] = METHODS[method]
        return method

    def _choose_method(self, context: Context) -> str:
        if self._host_only or (context.array is not None and context.array.eager):
            return CLOCK  # synchronous: a kernel is done when its call returns
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
        """Return the sites of some launches, and whether all are measured by the host's clock."""
        # Threads share an interpreted plan, but not its queues.
        key: tuple[int | Context, ...] = (id(owners), *frame.contexts.values())
        cached = self._sites.get(key)
        if cached is not None and cached[0] is owners:
            return cached[1], cached[2]
        sites = tuple([site_of(owner, item, frame) for owner, item in zip(owners, items, strict=True)])
        if len(self._sites) >= MAX_CACHED_SITE_LISTS:
            self._sites.clear()
        uses_host_clock = {self._method(site.context) for site in sites} <= {CLOCK}
        self._sites[key] = owners, sites, uses_host_clock
        return sites, uses_host_clock

    def _add_pending(self, record: _LaunchRecord) -> None:
        self._pending.append(record)
        self._reads += len(record.marks)
        if record.begins is not None:
            self._stamps += 2 * len(record.begins)
        if self._reads > MAX_PENDING_MARKS or self._stamps > MAX_PENDING_STAMPS:
            self.sum_up()

    def sum_up(self) -> None:
        """Add pending records to the statistics and the timeline."""
        with self._lock:
            pending, self._pending = self._pending, []
            runs, self._runs = self._runs, []
            self._reads = self._stamps = 0
            if self._closed:
                return  # of runs that end after the profile
            groups: dict[tuple[int, int], list[tuple[_LaunchRecord, Any, Any]]] = {}
            for record in pending:  # ordered by end: inner records come before outer ones
                begins, ends = self._times(record)
                if not len(begins) or begins[0] < self.began:
                    continue
                if record.parent is not None:
                    inner = record.parent.inner
                    inner[record.at] = inner.get(record.at, 0) + int(ends[-1] - begins[0])
                groups.setdefault((id(record.sites), len(begins)), []).append((record, begins, ends))
            for records in groups.values():
                self._add(records)
            for run in runs:
                self._add_run(run)

    def _add(self, records: Sequence[tuple[_LaunchRecord, Any, Any]]) -> None:
        sites = records[0][0].sites
        begins, ends = np.stack([each[1] for each in records]), np.stack([each[2] for each in records])
        inner: dict[int, int] = {}
        for record, _, _ in records:
            for at, time in record.inner.items():
                inner[at] = inner.get(at, 0) + time
        self.statistics.add(sites, Timings(ends - begins, inner))
        queues = [self._queues[site.context] for site in sites]
        self.timeline.add(sites, queues, [each[0].thread for each in records], begins, ends)

    def _times(self, record: _LaunchRecord) -> tuple[Any, Any]:
        """Return begins and ends of the finished launches of a record, in nanoseconds of the host's clock."""
        if record.begins is None:
            marks = np.array(record.marks, np.int64)
            return marks[:-1], marks[1:]
        num_done = len(record.marks) - 1
        try:
            begins = [self._time(s.context, b) for s, b in zip(record.sites, record.begins[:num_done], strict=False)]
            ends = [self._time(s.context, e) for s, e in zip(record.sites, record.marks[1:], strict=False)]
        except Exception:  # the device is lost, as the run has raised
            self.lost += num_done
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.array(begins, np.int64), np.array(ends, np.int64)

    def _time(self, context: Context, mark: Mark) -> int:
        if isinstance(mark, int):
            return mark
        reference, at = self._references[context]
        mark.wait()
        return at + round(1e9 * mark.seconds_since(reference))

    def close(self) -> None:
        """Add pending records, and drop references to plans and contexts."""
        self.sum_up()
        with self._lock:
            self._closed = True
            self._sites.clear()
            self._references.clear()
            self._queues.clear()
            self._methods.clear()

    @property
    def methods(self) -> Mapping[str, str]:
        """The method of time measurement, by place."""
        return self.statistics.methods
