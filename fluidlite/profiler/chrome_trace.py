"""A timeline as the JSON that chrome://tracing and Perfetto read: a row a queue, and one a thread of the host.

The format is Google's "Trace Event Format" (2016): complete events ("X"), in microseconds, and names of rows ("M").
"""

from __future__ import annotations

from typing import Any

from fluidlite.profiler.statistics import Timeline

HOST = 0
"""The process number of the host's rows."""


def chrome_trace(timeline: Timeline, began: int, notes: dict[str, Any]) -> dict[str, Any]:
    """Make the object to be written as JSON.

    ``began``: the time that becomes 0, in nanoseconds.
    ``notes``: goes into ``otherData``.
    """
    rows = _Rows()
    events: list[dict[str, Any]] = []
    for span in timeline.spans:
        pid, tid = rows.thread(span.thread)
        events.append(_event(span.name, span.kind, pid, tid, span.began - began, span.ended - span.began, None))
    for block in timeline.blocks:
        where = [rows.queue(queue) for queue in block.queues]
        facts = [_facts(site) for site in block.sites]
        for begins, durations in zip(block.begins.tolist(), (block.ends - block.begins).tolist(), strict=True):
            for site, (pid, tid), args, begin, time in zip(block.sites, where, facts, begins, durations, strict=False):
                events.append(_event(site.name, site.kind, pid, tid, begin - began, time, args))
    events.sort(key=lambda event: (event["pid"], event["tid"], event["ts"], -event["dur"]))
    return {"traceEvents": [*rows.names(), *events], "displayTimeUnit": "ms", "otherData": notes}


def _event(
    name: str, kind: str, pid: int, tid: int, begin: int, time: int, args: dict[str, Any] | None
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": begin / 1000,
        "dur": max(time, 0) / 1000,
    }
    if args:
        made["args"] = args
    return made


def _facts(site: Any) -> dict[str, Any]:
    facts = {
        "kernel": site.kernel,
        "line": site.line,
        "output": site.output,
        "bytes": site.nbytes,
        "made of": ", ".join(map(str, site.made_of)),
    }
    return {name: value for name, value in facts.items() if value}


class _Rows:
    """Numbers of processes (places) and threads (queues)."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {"host": HOST}
        self._queues: set[tuple[int, int]] = set()
        self._threads: dict[int, tuple[int, int]] = {}

    def queue(self, queue: tuple[str, int]) -> tuple[int, int]:
        place, number = queue
        found = self._places.setdefault(place, len(self._places)), number
        self._queues.add(found)
        return found

    def thread(self, ident: int) -> tuple[int, int]:
        return self._threads.setdefault(ident, (HOST, len(self._threads)))

    def names(self) -> list[dict[str, Any]]:
        """The events that name rows."""
        rows = [(f"queue {tid}", (pid, tid)) for pid, tid in sorted(self._queues)]
        rows += [(f"thread {tid}", (pid, tid)) for pid, tid in self._threads.values()]
        found = []
        for place, pid in self._places.items():
            found.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": place}})
            found.append({"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        for name, (pid, tid) in rows:
            found.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}})
        return found
