"""Seconds from a program to its first result: cold, from the disk cache, from memory; and for another batch size.

    python benchmarks/compile_time.py [--rounds N] [--place PLACE] [--json FILE]

The training step of an MLP (784-512-512-10, momentum): passes, plan, bind and compile, less a run of what is ready.
Each round is two fresh processes with an empty cache folder of their own: the first compiles, the second finds machine
code there. Times are the wall's; those of the processor tell the process's own share on a busy machine. One thread,
since a step's own time is subtracted. The cache folder is XDG_CACHE_HOME's, as on Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from common import CORE_TYPE, Times, machine, options, report, show

LIMITS = {"cold": 0.5, "disk": 0.05, "another batch size": 0.002}
"""Seconds that are aimed at, on a machine that does nothing else."""

PROGRAM = """
import json, sys, time
import numpy as np
import fluidlite as fluid
from fluidlite import layers

place = sys.argv[1]
image, label = layers.data("image", [784]), layers.data("label", [1], dtype="int64")
hidden = layers.fc(layers.fc(image, 512, act="relu"), 512, act="relu")
loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 10), label))
fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
rng = np.random.default_rng(0)

def feed(batch):
    return {"image": rng.random((batch, 784), "float32"), "label": rng.integers(0, 10, (batch, 1))}

def timed(exe, given):
    start, cpu = time.perf_counter(), time.process_time()
    exe.run(feed=given, fetch_list=[loss])
    return time.perf_counter() - start, time.process_time() - cpu

def made(exe, given):
    first = timed(exe, given)
    ready = [timed(exe, given) for _ in range(5)]
    return [first[k] - min(times[k] for times in ready) for k in range(2)]

def middle(pairs):
    return [sorted(times)[len(times) // 2] for times in zip(*pairs)]

exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())
found = {"first": made(exe, feed(128))}
found["another batch size"] = middle([made(exe, feed(batch)) for batch in range(66, 127, 5)])
found["from memory"] = middle([made(fluid.Executor(place), feed(128)) for _ in range(5)])
found["compiled"] = exe.cache_info()["compiled kernels"].misses
print(json.dumps(found))
"""


def once(place: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run the program in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, place], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """Print the table."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--place", default="cpu")
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if name != CORE_TYPE}
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[name] = str(arguments.threads)
    wall = {name: Times() for name in ("cold", "disk", "from memory", "another batch size")}
    cpu = {name: Times() for name in wall}
    kernels = 0
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            environment["XDG_CACHE_HOME"] = folder
            environment["POCL_CACHE_DIR"] = os.path.join(folder, "pocl")
            first, second = once(arguments.place, environment), once(arguments.place, environment)
        kernels = first["compiled"]
        for name, times in (("cold", first["first"]), ("disk", second["first"]),
                            ("from memory", second["from memory"]),
                            ("another batch size", second["another batch size"])):  # fmt: skip
            wall[name].seconds.append(times[0])
            cpu[name].seconds.append(times[1])
    rows = [
        [
            name,
            1e3 * each.median,
            1e3 * each.least,
            1e3 * cpu[name].least,
            1e3 * LIMITS[name] if name in LIMITS else None,
        ]
        for name, each in wall.items()
    ]
    title = f"To a first step on {arguments.place}: {kernels} kernels, {arguments.rounds} rounds, milliseconds"
    show(title, ["what", "median", "least", "least of the processor", "aim"], rows)
    figures = {
        name: {"median": each.median, "least": each.least, "cpu": cpu[name].least} for name, each in wall.items()
    }
    report(arguments.json, machine(arguments.threads), figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
