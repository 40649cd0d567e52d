"""Export of a timeline as JSON for chrome://tracing and Perfetto: one row for each queue and each host thread.

The format is Google's "Trace Event Format" (2016): complete events ("X"), in microseconds, and names of rows ("M").
"""

from __future__ import annotations

from typing import Any

from fluidlite.profiler.statistics import Timeline

HOST = 0
"""The process id of the host's rows."""


def chrome_trace(timeline: Timeline, start: int, notes: dict[str, Any]) -> dict[str, Any]:
    """Return the trace as an object to write as JSON.

    ``start``: the time that becomes 0, in nanoseconds.
    ``notes``: the value of ``otherData``.
    """
    rows = _Rows()
    events: list[dict[str, Any]] = []
    for span in timeline.spans:
        pid, tid = rows.thread(span.thread)
        events.append(_event(span.name, span.kind, pid, tid, span.began - start, span.ended - span.began, None))
    for batch in timeline.batches:
        pairs = [rows.queue(queue) for queue in batch.queues]
        details = [_site_args(site) for site in batch.sites]
        for begins, durations in zip(batch.begins.tolist(), (batch.ends - batch.begins).tolist(), strict=True):
            for site, (pid, tid), args, begin, time in zip(
                batch.sites, pairs, details, begins, durations, strict=False
            ):
                events.append(_event(site.name, site.kind, pid, tid, begin - start, time, args))
    events.sort(key=lambda event: (event["pid"], event["tid"], event["ts"], -event["dur"]))
    return {"traceEvents": [*rows.names(), *events], "displayTimeUnit": "ms", "otherData": notes}


def _event(
    name: str, kind: str, pid: int, tid: int, begin: int, duration: int, args: dict[str, Any] | None
) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": begin / 1000,
        "dur": max(duration, 0) / 1000,
    }
    if args:
        event["args"] = args
    return event


def _site_args(site: Any) -> dict[str, Any]:
    values = {
        "kernel": site.kernel,
        "line": site.line,
        "output": site.output,
        "bytes": site.nbytes,
        "made of": ", ".join(map(str, site.made_of)),
    }
    return {name: value for name, value in values.items() if value}


class _Rows:
    """Assigns process ids (places) and thread ids (queues)."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {"host": HOST}
        self._queues: set[tuple[int, int]] = set()
        self._threads: dict[int, tuple[int, int]] = {}

    def queue(self, queue: tuple[str, int]) -> tuple[int, int]:
        place, number = queue
        row = self._places.setdefault(place, len(self._places)), number
        self._queues.add(row)
        return row

    def thread(self, ident: int) -> tuple[int, int]:
        return self._threads.setdefault(ident, (HOST, len(self._threads)))

    def names(self) -> list[dict[str, Any]]:
        """Return the metadata events with the names of rows."""
        rows = [(f"queue {tid}", (pid, tid)) for pid, tid in sorted(self._queues)]
        rows += [(f"thread {tid}", (pid, tid)) for pid, tid in self._threads.values()]
        events = []
        for place, pid in self._places.items():
            events.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": place}})
            events.append({"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        for name, (pid, tid) in rows:
            events.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}})
        return events
