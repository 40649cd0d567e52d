"""What the profiler costs while it is on: workloads d and g of the peers, with and without it, in turns.

Run it as ``python benchmarks/profiler.py [--place P] [--clock wall]``. The table has the median and the least of all
calls; "summing up" is what the end of a profile takes, a call that it recorded.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Times, fix_environment, options, report, show

CALLS = {"mlp": 40, "encoder": 6, "encoder_train": 3}


def measure(call: Any, calls: int, rounds: int, clock: Any) -> tuple[Times, Times, Times]:
    """Time calls without and with a profiler, and the end of a profile."""
    from fluidlite import profiler

    off, on, end = Times(), Times(), Times()
    for number in range(rounds + 1):
        for times in (off, on) if number % 2 else (on, off):  # neither is always the one behind the other
            with profiler.recorded() if times is on else nullcontext() as profile:
                call()  # the first call after a switch looks everything up
                for _ in range(calls):
                    start = clock()
                    call()
                    if number:
                        times.seconds.append(clock() - start)
                start = clock()
                if profile is not None:
                    profile.rows()
                    if number:
                        end.seconds.append((clock() - start) / calls)
    return off, on, end


def main() -> None:
    """Print a line a workload."""
    parser = options(__doc__)
    parser.add_argument("--place", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu", help="seconds of processors, or the wall's")
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    from benchmarks.common import machine
    from benchmarks.peers.in_fluidlite import make
    from benchmarks.peers.workloads import WORKLOADS

    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    figures: dict[str, Any] = {}
    rows = []
    for name, calls in CALLS.items():
        workload = WORKLOADS[name]
        off, on, end = measure(make(name, workload.full, "", arguments.place), calls, arguments.rounds, clock)
        figures[name] = {"off": off.seconds, "on": on.seconds, "end": end.seconds}
        rows.append(
            [
                f"{workload.letter}: {name}",
                1e3 * off.median,
                1e3 * off.least,
                1e3 * on.median,
                1e3 * on.least,
                100 * (on.median / off.median - 1),
                100 * (on.least / off.least - 1),
                1e6 * end.median,
            ]
        )
    show(
        f"{arguments.place}, {arguments.threads} threads, {arguments.clock} clock",
        ["workload", "off, ms", "least", "on, ms", "least", "median, % more", "least, % more", "summing up, us a call"],
        rows,
    )
    report(arguments.json, machine(arguments.threads), figures)


if __name__ == "__main__":
    main()
