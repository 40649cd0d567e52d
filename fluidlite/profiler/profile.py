"""Profiles: the records of a profiler as rows, a table, and a trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from fluidlite.base.text_file import write_text
from fluidlite.base.text_table import table
from fluidlite.profiler.chrome_trace import chrome_trace
from fluidlite.profiler.recording import Recording
from fluidlite.profiler.statistics import MAX_TIMELINE_EVENTS, ProfileRow

SORTED_KEYS: dict[str, Callable[[ProfileRow], float]] = {
    "calls": lambda row: row.calls,
    "total": lambda row: row.total,
    "max": lambda row: row.max,
    "min": lambda row: row.min,
    "ave": lambda row: row.ave,
}
HEADS = ("Event", "Kernel", "Place", "Calls", "Total", "Max.", "Min.", "Ave.", "Ratio.", "Bytes")
SPANS = ("run", "event")
"""Kinds of rows that are spans of the host."""


class Profile:
    """The result of profiling; times are in nanoseconds.

    Attributes
    ----------
    state : str
        "CPU", "GPU" or "All".
    """

    def __init__(self, recording: Recording, state: str) -> None:
        self._recording = recording
        self.state = state
        self._ended: int | None = None

    def end(self) -> None:
        """Stop recording."""
        self._recording.close()
        self._ended = perf_counter_ns()

    def rows(self, sorted_key: str | None = None) -> list[ProfileRow]:
        """Return the rows of operators, transfers and checks, by kernel and place, and of runs and the user's events.

        Parameters
        ----------
        sorted_key : {None, "default", "calls", "total", "max", "min", "ave"}
            In descending order, as in Fluid, also by "min". Default: in the order of first calls.
        """
        self._recording.sum_up()
        unsorted = list(self._recording.statistics.rows.values())
        if sorted_key in (None, "default"):
            return unsorted
        return sorted(unsorted, key=SORTED_KEYS[str(sorted_key)], reverse=True)

    @property
    def seconds(self) -> float:
        """Duration of the profile in seconds."""
        ended = self._ended if self._ended is not None else perf_counter_ns()
        return 1e-9 * (ended - self._recording.began)

    @property
    def methods(self) -> dict[str, str]:
        """The method of time measurement, by place."""
        return dict(self._recording.methods)

    def data(self, sorted_key: str | None = None) -> dict[str, Any]:
        """Return the profile as plain dicts and lists; times are in seconds."""
        rows = []
        for row in self.rows(sorted_key):
            times = {name: 1e-9 * getattr(row, name) for name in ("total", "own", "max", "min", "ave")}
            names = {name: getattr(row, name) for name in ("kind", "name", "kernel", "place", "calls")}
            rows.append({**names, **times, "bytes": row.nbytes})
        statistics = self._recording.statistics
        transfers = {place: dict(counts) for place, counts in statistics.transfers.items()}
        return {
            "state": self.state,
            "seconds": self.seconds,
            "times": self.methods,
            "rows": rows,
            "transfers": transfers,
            "lost": self._recording.lost,
            "dropped": self._recording.timeline.dropped,
        }

    def text(self, sorted_key: str | None = None) -> str:
        """Return the table, with numbers of copies and methods of time measurement."""
        rows = self.rows(sorted_key)
        order = "the order of their first calls" if sorted_key in (None, "default") else str(sorted_key)
        launched = [row for row in rows if row.kind not in SPANS]
        total = sum(row.own for row in launched)
        lines = ["-------------------------     Profiling Report     -------------------------", ""]
        lines.append(f"State {self.state}, {1e3 * self.seconds:.2f} ms. Times in ms, sorted by {order}.")
        lines += [f"{place}: times by {method}" for place, method in self.methods.items()]
        for place, copies in self._recording.statistics.transfers.items():
            lines.append(
                "{0}: {launches:,} launches; copies: {copy_in:,} in ({bytes_in:,} bytes), {copy_out:,} out "
                "({bytes_out:,} bytes), {copy_within:,} within, {copy_peer:,} to other queues".format(place, **copies)
            )
        lines.append("")
        spans = [_cells(row, 0) for row in rows if row.kind in SPANS]
        lines += table([HEADS, *(_cells(row, total) for row in launched), *spans], range(3, len(HEADS)))
        if self._recording.lost:
            lines.append(f"{self._recording.lost:,} launches are left out: their device has no times of them any more.")
        if self._recording.timeline.dropped:
            lines.append(
                f"The trace has the first {MAX_TIMELINE_EVENTS:,} events; {self._recording.timeline.dropped:,} later "
                "ones are in this table alone."
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def trace(self) -> dict[str, Any]:
        """Return the timeline as an object for JSON, with one row for each queue and thread."""
        self._recording.sum_up()
        notes = {"state": self.state, "times": self.methods, "dropped": self._recording.timeline.dropped}
        return chrome_trace(self._recording.timeline, self._recording.began, notes)

    def write_trace(self, path: str | Path) -> Path:
        """Write :meth:`trace` to a file; return its path.

        Raises
        ------
        ProgramError
            If it cannot be written.
        """
        return write_text(path, json.dumps(self.trace(), separators=(",", ":")), "the trace")


def _cells(row: ProfileRow, total: int) -> tuple[str, ...]:
    times = [f"{1e-6 * time:.4f}" for time in (row.total, row.max, row.min, row.ave)]
    ratio = f"{row.own / total:.4f}" if total else ""
    return row.name, row.kernel, row.place, f"{row.calls:,}", *times, ratio, f"{row.nbytes:,}" if row.nbytes else ""
