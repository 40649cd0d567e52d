"""A contender's process: it prepares the workloads that it is told to, and runs them when it has a turn.

A line of JSON asks, a line answers. Each library lives in a Python of its own, and waits while others have their turn.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.common import Worker

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Process(Worker):
    """The process, seen from the one that measures."""

    def __init__(self, library: str, where: str, python: str, threads: int, folder: Path) -> None:
        self.library, self.where, self.folder = library, where, folder
        environment = dict(os.environ)
        if library == "tinygrad":
            environment |= {"DEV": where, "CPU_COUNT": str(threads)}
        command = [python, "-m", "benchmarks.peers.process", library, where, str(threads), str(folder)]
        super().__init__(f"the process of {self.name}", command, environment)

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.library}, {self.where}" if self.where else self.library


class Server:
    """The process, seen from within."""

    def __init__(self, library: str, where: str, threads: int, folder: Path) -> None:
        self.library, self.where, self.threads, self.folder = library, where, threads, folder
        if library == "jax":  # it has no number of threads: it takes one for each processor that it may use
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        self.module = importlib.import_module(f"benchmarks.peers.in_{library}")
        self.calls: dict[str, Any] = {}

    def variants(self, name: str) -> dict[str, Any]:
        """The ways to run a workload."""
        return {"variants": self.module.variants(name)}

    def load(self, name: str, variant: str, small: bool) -> dict[str, Any]:
        """Prepare a workload and run it; say how long the first call took, and where its results are."""
        import numpy as np

        from benchmarks.peers.workloads import STEPS, WORKLOADS

        work = WORKLOADS[name]
        where = self.where if self.library == "fluidlite" else self.threads
        call = self.module.make(name, work.sizes(small), variant, where)
        start = time.perf_counter()
        found = [call()]
        seconds = time.perf_counter() - start
        found += [call() for _ in range(STEPS - 1)]
        result = np.array(found, np.float64) if work.trains else _array(found[-1])
        file = self.folder / f"{self.library}-{self.where}-{variant}.npy".replace(":", "_")
        np.save(file, result)
        self.calls[variant] = call
        return {"file": str(file), "seconds": seconds}

    def turn(self, variant: str, seconds: float, inner: int, clock: str) -> dict[str, Any]:
        """Call for so many seconds, at least twice; the first is not counted."""
        call, read = self.calls[variant], CLOCKS[clock]
        times: list[float] = []
        ends = time.perf_counter() + seconds
        while len(times) < 2 or time.perf_counter() < ends:
            start = read()
            for _ in range(inner):
                call()
            times.append((read() - start) / inner)
        return {"seconds": times[1:]}

    def drop(self) -> dict[str, Any]:
        """Let go of what is prepared."""
        self.calls.clear()
        gc.collect()
        return {}

    def memory(self, name: str, small: bool, steps: int) -> dict[str, Any]:
        """Run some steps; say by how many bytes the process has grown at the most since the library was loaded."""
        from benchmarks.peers.workloads import WORKLOADS

        variants = self.module.variants(name)
        if not variants:
            return {"absent": True}
        where = self.where if self.library == "fluidlite" else self.threads
        self.module.make("add", WORKLOADS["add"].full, self.module.variants("add")[0], where)()
        begun = _resident("VmRSS")
        call = self.module.make(name, WORKLOADS[name].sizes(small), variants[0], where)
        made = _resident("VmRSS")
        losses = [float(_array(call()).item()) for _ in range(steps)]
        return {"begun": begun, "made": made - begun, "growth": _resident("VmHWM") - begun, "losses": losses}


def _array(found: Any) -> Any:
    import numpy as np

    return np.asarray(found.numpy() if hasattr(found, "numpy") else found)


def _resident(fact: str) -> int:
    with open("/proc/self/status", encoding="ascii") as facts:  # getrusage's peak may be that of the parent
        return next(int(line.split()[1]) for line in facts if line.startswith(fact)) * 1024


def serve(library: str, where: str, threads: str, folder: str) -> None:
    """Answer until the input ends."""
    server = Server(library, where, int(threads), Path(folder))
    print(json.dumps({"version": server.module.VERSION}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(server, asked.pop("do"))(**asked)
        except Exception as error:  # one workload must not end the table: the parent shows the reason
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
