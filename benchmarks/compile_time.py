"""Seconds from a program to its first result: cold, from the disk cache, from memory; and for another batch size.

    python benchmarks/compile_time.py [--rounds N] [--place PLACE] [--program NAME] [--json FILE]

The training step of an MLP (784-512-512-10, momentum), of ResNet-18 (3 x 64 x 64, batch statistics), or of an encoder
(4 layers of 256, 128 tokens): passes, plan, bind and compile, less a run of what is ready.
Each round is two fresh processes with an empty cache folder of their own: the first compiles, the second finds machine
code there. Times are the wall's; those of the processor tell the process's own share on a busy machine, without that of
processes that compile beside it (FLUIDLITE_COMPILE_PROCESSES=0: none). One thread, since a step's own time is
subtracted. The cache folder is XDG_CACHE_HOME's, as on Linux.
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
rng = np.random.default_rng(0)
label = layers.data("label", [1], dtype="int64")

def normal(x, size, side, stride, act=None):
    return layers.batch_norm(layers.conv2d(x, size, side, stride, side // 2, bias_attr=False), act)

def dense(x, size, act=None):
    return layers.fc(x, size, num_flatten_dims=2, act=act)

def heads(x):
    return layers.transpose(layers.reshape(x, [0, 0, 4, 64]), [0, 2, 1, 3])

def layer(x):
    q, k, v = (heads(dense(x, 256)) for _ in range(3))
    seen = layers.matmul(layers.softmax(layers.scale(layers.matmul(q, k, transpose_y=True), 0.125)), v)
    seen = dense(layers.reshape(layers.transpose(seen, [0, 2, 1, 3]), [0, 0, 256]), 256)
    x = layers.layer_norm(x + seen, begin_norm_axis=2)
    return layers.layer_norm(x + dense(dense(x, 1024, "gelu"), 256), begin_norm_axis=2)

if sys.argv[2] == "mlp":
    dims, sizes = [784], (128, range(66, 127, 5))
    image = layers.data("image", dims)
    features = layers.fc(layers.fc(image, 512, act="relu"), 512, act="relu")
elif sys.argv[2] == "resnet":
    dims, sizes = [3, 64, 64], (8, (4, 5, 6))
    image = layers.data("image", dims)
    x = layers.pool2d(normal(image, 64, 7, 2, "relu"), 3, "max", 2, 1)
    for stage, size in enumerate((64, 128, 256, 512)):
        for block in range(2):
            bends = stage > 0 and block == 0
            past = normal(x, size, 1, 2) if bends else x
            x = layers.elementwise_add(
                past, normal(normal(x, size, 3, 1 + bends, "relu"), size, 3, 1), act="relu"
            )
    features = layers.pool2d(x, pool_type="avg", global_pooling=True)
else:
    dims, sizes = [128, 256], (8, (4, 5, 6))
    image = x = layers.data("image", dims)
    for _ in range(4):
        x = layer(x)
    features = layers.reduce_mean(x, 1)
loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(features, 10), label))
fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)

def feed(batch):
    return {"image": rng.random((batch, *dims), "float32"), "label": rng.integers(0, 10, (batch, 1))}

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
found = {"first": made(exe, feed(sizes[0]))}
found["another batch size"] = middle([made(exe, feed(batch)) for batch in sizes[1]])
found["from memory"] = middle([made(fluid.Executor(place), feed(sizes[0])) for _ in range(5)])
found["compiled"] = exe.cache_info()["compiled kernels"].misses
print(json.dumps(found))
"""


def once(place: str, program: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run the program in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, place, program], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """Print the table."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--place", default="cpu")
    parser.add_argument("--program", choices=("mlp", "resnet", "encoder"), default="mlp")
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
            first, second = (
                once(arguments.place, arguments.program, environment),
                once(arguments.place, arguments.program, environment),
            )
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
            1e3 * LIMITS[name] if name in LIMITS and arguments.program == "mlp" else None,
        ]
        for name, each in wall.items()
    ]
    title = f"To a first step of {arguments.program} on {arguments.place}: {kernels} kernels"
    title += f", {arguments.rounds} rounds, milliseconds"
    show(title, ["what", "median", "least", "least of the processor", "aim"], rows)
    figures = {
        name: {"median": each.median, "least": each.least, "cpu": cpu[name].least} for name, each in wall.items()
    }
    report(arguments.json, machine(arguments.threads), figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
