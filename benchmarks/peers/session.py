"""Measures: starts the contenders, holds their results against each other, and gives them turns."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Times, show
from benchmarks.peers.process import Process
from benchmarks.peers.workloads import WORKLOADS

PAUSE = 0.05
"""Seconds after a turn: idle threads of the other libraries spin for a while before they sleep."""

MEMORY_STEPS = 4

Row = dict[str, Any]


def contenders(arguments: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Library, where it runs, and its Python."""
    found = [("fluidlite", place, sys.executable) for place in arguments.places]
    for library, python in arguments.pythons.items():
        if shutil.which(python) is None:
            raise SystemExit(f"no Python for {library}: {python} is no program")
        for device in arguments.tinygrad_devices if library == "tinygrad" else [""]:
            found.append((library, device, python))
    return found


class Session:
    """The processes, and what has been measured."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self.stack = ExitStack()
        timed = any(letter != "h" for letter in arguments.only)
        self.processes: list[Process] = []
        for one in contenders(arguments) if timed else ():
            self.processes.append(self.start(*one))
            self.stack.callback(self.processes[-1].close)

    def start(self, library: str, where: str, python: str) -> Process:
        """Start a contender's process."""
        return Process(library, where, python, self.arguments.threads, self.folder)

    def measure(self, name: str) -> None:
        """Check that all compute the same, then time them in turns."""
        work = WORKLOADS[name]
        running: list[tuple[Any, str, Row]] = []
        for process in self.processes:
            for variant in process.ask(do="variants", name=name)["variants"]:
                answer = process.ask(do="load", name=name, variant=variant, small=self.arguments.small)
                label = " ".join(part for part in (process.name, variant) if part)
                if "error" in answer:
                    self.failures.append(f"{name}, {label}: {answer['error']}")
                    continue
                row = {"workload": name, "contender": label, "version": process.version, "unit": work.unit,
                       "first": answer["seconds"], "times": Times(), "file": answer["file"]}  # fmt: skip
                running.append((process, variant, row))
        self.compare([row for _, _, row in running])
        ends = time.perf_counter() + self.arguments.seconds * len(running)
        rounds = 0
        while rounds < 3 or time.perf_counter() < ends:
            for process, variant, row in running:
                row["times"].seconds += process.ask(
                    do="turn",
                    variant=variant,
                    seconds=self.arguments.turn,
                    inner=work.calls,
                    clock=self.arguments.clock,
                )["seconds"]
                time.sleep(PAUSE)
            rounds += 1
        for process in self.processes:
            process.ask(do="drop")
        self.rows += [row for _, _, row in running]
        self.progress([row for _, _, row in running])

    def compare(self, rows: list[Row]) -> None:
        """Note whose results are others than the first one's."""
        found = [np.load(row["file"]).astype(np.float64) for row in rows]
        for row, result in zip(rows, found, strict=True):
            row["off"] = float(np.abs(result - found[0].reshape(result.shape)).max() / np.abs(found[0]).max())
            self.judge(row, rows[0]["contender"])

    def judge(self, row: Row, first: str) -> None:
        """Note a contender that is off by too much, or by NaN."""
        if not row["off"] <= WORKLOADS[row["workload"]].tolerance:
            self.failures.append(f"{row['workload']}, {row['contender']}: differs from {first} by {row['off']:.2g}")

    def memory(self) -> None:
        """Measure workload h: each contender alone, in a process of its own."""
        losses: list[float] = []
        for one in contenders(self.arguments):
            with contextlib.closing(self.start(*one)) as process:
                answer = process.ask(do="memory", name="deep", small=self.arguments.small, steps=MEMORY_STEPS)
                if "absent" in answer:
                    continue
                if "error" in answer:
                    self.failures.append(f"deep, {process.name}: {answer['error']}")
                    continue
                losses = losses or answer["losses"]
                off = max(abs(a / b - 1) for a, b in zip(answer["losses"], losses, strict=True))
                row = {"workload": "deep", "contender": process.name, "version": process.version,
                       "unit": "MB", "off": off, **answer}  # fmt: skip
                self.rows.append(row)
                first = next(one["contender"] for one in self.rows if one["workload"] == "deep")
                self.judge(row, first)
                said = f"{'deep':15} {process.name:28} {answer['growth'] / 1e6:9.1f} MB  off {off:.1e}"
                print(said, file=sys.stderr, flush=True)

    def progress(self, rows: list[Row]) -> None:
        """Say what has been measured."""
        for row in rows:
            scale = {"us": 1e6, "ms": 1e3}[row["unit"]]
            print(f"{row['workload']:15} {row['contender']:28} {row['times'].least * scale:9.3f} "
                  f"{row['times'].median * scale:9.3f} {row['unit']}  first {row['first']:.2f} s  off {row['off']:.1e}",
                  file=sys.stderr, flush=True)  # fmt: skip


def _ratio(seconds: float, base: float) -> float:
    """The ratio of two times; NaN where the clock's step is longer than the base."""
    return seconds / base if base else float("nan")


def tables(rows: list[Row]) -> None:
    """Print one table for what is timed, and one for memory."""
    shown = []
    for row in rows:
        if "times" not in row:
            continue
        scale = {"us": 1e6, "ms": 1e3}[row["unit"]]
        base = next(one for one in rows if one["workload"] == row["workload"])["times"]
        work, times = WORKLOADS[row["workload"]], row["times"]
        title = f"{work.letter}: {work.title}" if times is base else ""
        shown.append([title, row["contender"], row["unit"], times.median * scale, times.least * scale,
                      _ratio(times.median, base.median), _ratio(times.least, base.least)])  # fmt: skip
    heads = ["workload", "contender", "unit", "median", "least", "to the first, median", "to the first, least"]
    if shown:
        show("Workloads, in turns", heads, shown)
    sizes = [row for row in rows if "growth" in row]
    if sizes:
        show(f"h: {WORKLOADS['deep'].title}: peak growth of the process, MB of 1,000,000",
             ["contender", "growth", "after the import"],
             [[row["contender"], row["growth"] / 1e6, row["begun"] / 1e6] for row in sizes])  # fmt: skip
