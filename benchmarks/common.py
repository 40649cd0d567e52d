"""What the benchmarks share: threads, timing in rounds, tables, and the machine. Import it before NumPy."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CORE_TYPE = "OPENBLAS_CORETYPE"
"""It makes OpenBLAS take another processor's kernels: no benchmark means that."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT",
            "POCL_CPU_MAX_CU_COUNT")  # fmt: skip


def options(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of each library")
    return parser


def fix_environment(threads: int) -> None:
    """Set the threads of the libraries; call it before they are imported."""
    if "numpy" in sys.modules:
        raise RuntimeError("NumPy was imported before its threads were set")
    os.environ.pop(CORE_TYPE, None)
    for name in _THREADS:
        os.environ[name] = str(threads)


@dataclass
class Times:
    """Seconds of one contender, one number a repetition."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle."""
        return statistics.median(self.seconds)

    @property
    def least(self) -> float:
        """The minimum: what is left when nothing else runs on the machine."""
        return min(self.seconds)

    def __truediv__(self, parts: float) -> Times:
        return Times([value / parts for value in self.seconds])


def in_turns(
    contenders: Mapping[str, Callable[[], Any]],
    rounds: int,
    each: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Time contenders in turns, so that what else happens on the machine meets all of them.

    Parameters
    ----------
    contenders : mapping of name to callable
    rounds : int
        Each contender has a turn in each; one more round, the first, warms up.
    each : int
        Calls a turn, each of them timed.
    clock : callable
        Seconds: the wall's, or ``time.process_time`` on a busy machine.
    """
    times = {name: Times() for name in contenders}
    for number in range(rounds + 1):
        for name, call in contenders.items():
            for _ in range(each):
                start = clock()
                call()
                taken = clock() - start
                if number:
                    times[name].seconds.append(taken)
    return times


def machine(threads: int, **more: Any) -> dict[str, Any]:
    """Facts that figures mean nothing without."""
    from importlib.metadata import PackageNotFoundError, version

    facts: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    for package in ("numpy", "fluidlite", "pyopencl"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts | more


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        found = ""
    return found or platform.processor() or platform.machine()


def show(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table: text to the left, numbers to the right, in Markdown's form; nothing where there are no rows."""
    cells = [[_text(cell) for cell in row] for row in rows]
    if not cells:
        return
    kinds = [all(_is_number(row[k]) for row in cells) for k in range(len(heads))]
    widths = [max(len(head), *(len(row[k]) for row in cells)) for k, head in enumerate(heads)]

    def line(row: Sequence[str]) -> str:
        parts = (cell.rjust(w) if number else cell.ljust(w) for cell, w, number in zip(row, widths, kinds, strict=True))
        return "| " + " | ".join(parts) + " |"

    print(f"\n{title}\n")
    print(line(heads))
    rules = ("-" * (w + 1) + (":" if number else "-") for w, number in zip(widths, kinds, strict=True))
    print("|" + "|".join(rules) + "|")
    for row in cells:
        print(line(row))


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 10 else f"{cell:,.1f}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return str(cell)


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("+-").replace(",", "").replace(".", "", 1).replace("e-", "").isdigit()


def report(path: Path | None, facts: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """Print the machine's line, and write the data if a file is named."""
    print("\n" + ", ".join(f"{name} {value}" for name, value in facts.items()))
    if path is not None:
        path.write_text(json.dumps({"machine": facts, "figures": figures}, indent=1) + "\n", encoding="utf-8")


class Worker:
    """A process that is asked by a line of JSON, and answers by one; the first says what version it has.

    Parameters
    ----------
    what : str
        What it is called when it stops.
    command : sequence of str
    environment : mapping, optional
        Default: this process's own.
    """

    def __init__(self, what: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._what = what
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        self.version: str = self._answer()["version"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._what} stopped; what it said is above")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **question: Any) -> dict[str, Any]:
        """Ask, and return the answer."""
        assert self._process.stdin is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
