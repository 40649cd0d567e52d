"""A step of training an embedding of 1,000,000 x 64 with 256 ids: a dense gradient against one of rows.

Run it as ``python benchmarks/sparse_rows.py [place] [height]``. It prints the least time of several steps, in turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite import layers, optimizer

WIDTH, IDS, ROUNDS = 64, 256, 15
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizer.SGD(0.1),
    "adagrad": lambda: optimizer.Adagrad(0.1),
    "adam, lazy": lambda: optimizer.Adam(0.1, lazy_mode=True),
    "ftrl": lambda: optimizer.Ftrl(0.1),
    "momentum": lambda: optimizer.Momentum(0.1, 0.9),
    "rmsprop": lambda: optimizer.RMSProp(0.1),
    "adam": lambda: optimizer.Adam(0.1),
}


def step(place: str, height: int, sparse: bool, make: Callable[[], Any]) -> Callable[[], None]:
    """Return what runs one step."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup):
        ids = layers.data("ids", [1], dtype="int64")
        found = layers.embedding(ids, [height, WIDTH], is_sparse=sparse)
        make().minimize(layers.mean(layers.square(found)))
    exe = fluid.Executor(place, fallback="allow")
    exe.run(startup, scope=scope)
    drawn = np.random.default_rng(1).integers(0, height, (IDS, 1))
    return lambda: exe.run(main, feed={"ids": drawn}, scope=scope) and None


def main() -> None:
    """Print a line for each optimiser."""
    place = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    height = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    print(f"{place}, {height:,} x {WIDTH}, {IDS} ids: ms a step")
    for name, make in OPTIMIZERS.items():
        steps = [step(place, height, sparse, make) for sparse in (False, True)]
        least = [float("inf")] * 2
        for turn in range(ROUNDS + 1):
            for k, run in enumerate(steps):
                start = time.perf_counter()
                run()
                if turn:
                    least[k] = min(least[k], 1e3 * (time.perf_counter() - start))
        print(f"{name:12} dense {least[0]:9.2f}  sparse {least[1]:7.2f}  ratio {least[0] / least[1]:7.1f}")


if __name__ == "__main__":
    main()
