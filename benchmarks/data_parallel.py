"""Data parallel training: what a sum over processes costs by bytes, and a step on two processes of one thread.

    python benchmarks/data_parallel.py [--processes N] [--rounds N] [--json FILE]

First the sum over all processes is timed from 4 bytes to 16 MiB, as the training makes it on this machine (in shared
memory where no processor is free, else by MPI), and a line is fitted: latency + bytes / rate.
Then workload d (a step of an MLP 784-512-512-10, batch 128, SGD with momentum) runs in one process with N threads, in N
processes of one thread that share the batch, and in one process of one thread with an N-th of the batch, which is what
each of them computes. What the line and that share predict stands beside what was measured. Figures are the least of
the rounds; mpirun starts the processes. "processors" is what all processes spend: where no core is free, it tells
what the wall's clock cannot.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import fix_environment, machine, options, report, show

SIZES = (784, 512, 512, 10)
BATCH = 128
BYTES = (4, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24)


def mpirun() -> str:
    """Where mpirun is: beside this Python, or on the path."""
    found = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    if found is None:
        raise SystemExit("this benchmark needs mpirun: pip install 'fluidlite[mpi]'")
    return found


def reductions(rounds: int) -> list[tuple[int, float]]:
    """Bytes and the least seconds of a sum over all processes."""
    import numpy as np

    from fluidlite.distributed.groups import world

    group, found = world(), []
    for nbytes in BYTES:
        shared, times = getattr(group, "shared", None), []
        array = np.empty(nbytes, np.uint8) if shared is None else shared.heap.allocate(nbytes)
        array = array.view(np.float32)
        for _ in range(max(rounds, 5) * (8 if nbytes < 1 << 20 else 1)):
            array[...] = 1
            group.barrier()
            start = time.perf_counter()
            if group.reduces_in_place:
                group.reduce_in_place([array], "sum")
            else:
                group.start_all_reduce(array, "sum").wait()
            times.append(time.perf_counter() - start)
        found.append((nbytes, min(times)))
    return found


def steps(rows: int, rounds: int, distributed: bool) -> tuple[float, float]:
    """The least seconds of a step of a network on so many rows, and of the processors of all processes together."""
    import numpy as np

    import fluidlite as fluid
    from fluidlite import nn

    random = np.random.default_rng(0)
    data = [(random.random((rows, SIZES[0]), "float32"), random.integers(0, SIZES[-1], (rows, 1)))] * 4
    network = nn.Network([SIZES[0]], "cpu", fluid.optimizer.Momentum(0.01, 0.9), "softmax_cross_entropy", seed=1,
                         distributed=distributed)  # fmt: skip
    for width in SIZES[1:-1]:
        network.add_layer(nn.Dense(width, "relu"))
    network.add_layer(nn.Dense(SIZES[-1]))
    network.batched_train(data, 3)
    best = least = float("inf")
    for _ in range(rounds):
        start, used = time.perf_counter(), time.process_time()
        network.batched_train(data)
        best = min(best, (time.perf_counter() - start) / len(data))
        mine = np.float64((time.process_time() - used) / len(data))
        least = min(least, float(network.group.all_reduce(np.asarray(mine))) if distributed else float(mine))
    return best, least


def worker(what: str, rounds: int, rows: int) -> None:
    """One process: print what it measured as JSON, if it is the first."""
    if what == "reductions":
        result: Any = reductions(rounds)
    else:
        result = steps(rows, rounds, what == "together")
    if os.environ.get("PMI_RANK", "0") == "0":
        print(json.dumps(result), flush=True)


def ask(what: str, rounds: int, rows: int, processes: int, threads: int) -> Any:
    """Start processes, and return what the first says."""
    command = [sys.executable, __file__, "--worker", what, "--rounds", str(rounds), "--rows", str(rows),
               "--threads", str(threads)]  # fmt: skip
    if processes > 1:
        command = [mpirun(), "-n", str(processes), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def fitted(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Latency in seconds and bytes a second: a line through the points, each weighted by its relative error."""
    import numpy as np

    nbytes, seconds = (np.array(column, float) for column in zip(*points, strict=True))
    design = np.stack([np.ones_like(nbytes), nbytes], 1) / seconds[:, None]
    (latency, slope), *_ = np.linalg.lstsq(design, np.ones_like(seconds), rcond=None)
    return float(latency), float(1 / slope)


def main() -> None:
    """Measure, predict, print and write."""
    parser = options(__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=BATCH)
    parser.add_argument("--worker", choices=("reductions", "together", "alone"))
    given = parser.parse_args()
    fix_environment(given.threads)
    if given.worker:
        worker(given.worker, given.rounds, given.rows)
        return
    from fluidlite.distributed.transform import BUCKET_BYTES

    count = given.processes
    points = ask("reductions", given.rounds, 0, count, 1)
    latency, rate = fitted(points)
    show(f"The sum over {count} processes", ("bytes", "measured us", "latency + bytes / rate, us"),
         [(n, t * 1e6, (latency + n / rate) * 1e6) for n, t in points])  # fmt: skip
    print(f"\nlatency {latency * 1e6:.0f} us, rate {rate / 1e9:.2f} GB/s")

    turns = [
        {
            "alone": ask("alone", given.rounds, BATCH, 1, count),
            "share": ask("alone", given.rounds, BATCH // count, 1, 1),
            "together": ask("together", given.rounds, BATCH, count, 1),
        }
        for _ in range(3)
    ]  # fmt: skip
    best = {name: min(turn[name][0] for turn in turns) for name in turns[0]}
    used = {name: min(turn[name][1] for turn in turns) for name in turns[0]}
    gradients = 4 * sum(a * b + b for a, b in pairwise(SIZES))
    buckets = -(-gradients // BUCKET_BYTES)
    wire = buckets * latency + gradients / rate
    rows = [
        (f"one process, {count} threads", best["alone"] * 1e3, None, 1.0, used["alone"] * 1e3, 1.0),
        (f"one process, 1 thread, 1/{count} of the batch", best["share"] * 1e3, None, best["share"] / best["alone"],
         used["share"] * 1e3, used["share"] / used["alone"]),
        (f"{count} processes of 1 thread", best["together"] * 1e3, (best["share"] + wire) * 1e3,
         best["together"] / best["alone"], used["together"] * 1e3, used["together"] / used["alone"]),
    ]  # fmt: skip
    show(f"Workload d, batch {BATCH}, {gradients:,} bytes of gradients; ms a step",
         ("", "measured", "predicted, nothing overlapped", "ratio", "processors", "ratio"), rows)  # fmt: skip
    report(
        given.json,
        machine(given.threads),
        {"reductions": points, "latency": latency, "rate": rate, **best, "processors": used},
    )


if __name__ == "__main__":
    main()
