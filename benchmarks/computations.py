"""Bound programs: workloads a and b of the peers, a training step, and what memory it takes; against the interpreter.

    python benchmarks/computations.py [--json FILE] [--place PLACE] [--only NAME ...]

Workloads: "chain" (100 additions on [1]; with and without passes), "gelu" (gelu(x*w+b), tanh form, on 16 M float32),
"mlp" (784-512-512-10, batch 128, SGD with momentum), "rebind" (the same for another batch size), "memory" (20 layers of
2048, batch 256: peak bytes beyond what was used before; the resident size too, in a process of its own).
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from common import Times, fix_environment, in_turns, machine, options, report, show

ROUNDS = 60
CHAIN = 100
ELEMENTS = 16 * 1024 * 1024
GELU = 0.7978845608, 0.044715

Program = tuple[Any, Any, dict[str, Any], list[Any]]


def chain() -> Program:
    """Additions on [1], each of which needs the one before."""
    import numpy as np

    import fluidlite as fluid

    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = y = fluid.layers.data("x", shape=[1], append_batch_size=False)
        for _ in range(CHAIN):
            y = fluid.layers.elementwise_add(y, x)
    return main, fluid.Program(), {"x": np.ones(1, np.float32)}, [y]


def gelu() -> Program:
    """gelu(x*w+b), the tanh form, of state; its result is state too, so that nothing but computing is timed."""
    import fluidlite as fluid
    from fluidlite import layers

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x, w, b, out = (
            layers.create_global_var([ELEMENTS], value, "float32", persistable=True, name=name)
            for name, value in (("x", 0.7), ("w", 1.3), ("b", -0.2), ("out", 0.0))
        )
        t = layers.elementwise_add(layers.elementwise_mul(x, w), b)
        cube = layers.elementwise_mul(layers.elementwise_mul(t, t), t)
        inner = layers.scale(layers.elementwise_add(t, layers.scale(cube, GELU[1])), GELU[0])
        layers.assign(layers.elementwise_mul(layers.scale(t, 0.5), layers.scale(layers.tanh(inner), 1.0, 1.0)), out)
    return main, startup, {}, []


def mlp(batch: int = 128) -> Program:
    """A training step of three layers."""
    import fluidlite as fluid
    from fluidlite import layers

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        image, label = layers.data("image", [784]), layers.data("label", [1], dtype="int64")
        hidden = layers.fc(layers.fc(image, 512, act="relu"), 512, act="relu")
        costs: Any = layers.softmax_with_cross_entropy(layers.fc(hidden, 10), label)
        loss = layers.mean(costs)
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    return main, startup, mlp_feed(batch), [loss]


def mlp_feed(batch: int) -> dict[str, Any]:
    """Images and labels."""
    import numpy as np

    random = np.random.default_rng(7)
    return {"image": random.standard_normal((batch, 784), np.float32), "label": random.integers(0, 10, (batch, 1))}


def deep() -> Program:
    """The peers' workload h."""
    import numpy as np

    import fluidlite as fluid
    from fluidlite import layers

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        hidden = layers.data("x", [2048])
        y = layers.data("y", [2048])
        for _ in range(20):
            hidden = layers.fc(hidden, 2048, act="relu")
        loss = layers.mean(layers.square_error_cost(hidden, y))
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    random = np.random.default_rng(7)
    feed = {name: random.standard_normal((256, 2048), np.float32) for name in ("x", "y")}
    return main, startup, feed, [loss]


def call_of(program: Program, place: str, mode: str, passes: bool = True) -> Callable[[], Any]:
    """Return a call that runs a program once, in a mode."""
    import fluidlite as fluid

    main, startup, feed, wanted = program
    executor, scope = fluid.Executor(place, mode=mode, passes=None if passes else ()), fluid.Scope()
    executor.run(startup, scope=scope)
    return lambda: executor.run(main, feed=feed, fetch_list=wanted, scope=scope)


def modes(program: Program, place: str) -> dict[str, Callable[[], Any]]:
    """The interpreter, bound without passes, and bound after them."""
    return {
        "interpreted": call_of(program, place, "interpreted"),
        "bound, no passes": call_of(program, place, "compiled", passes=False),
        "bound": call_of(program, place, "compiled"),
    }


def as_computation(program: Program, place: str) -> Callable[[], Any]:
    """Return a call of a computation that takes the feeds as arguments."""
    from fluidlite.transformers import make_transformer

    main, _, feed, (wanted,) = program
    step = make_transformer(place).computation(wanted, *map(main.global_block().var, feed))
    values = tuple(feed.values())
    return lambda: step(*values)


def rebinding(place: str) -> Times:
    """Seconds of the first call with a batch size that is new, less those of the second."""
    import fluidlite as fluid

    main, startup, _, wanted = mlp()
    executor, scope = fluid.Executor(place, mode="compiled"), fluid.Scope()
    executor.run(startup, scope=scope)
    times = Times()
    for number, batch in enumerate(itertools.islice(itertools.count(100), 30)):
        feed, seconds = mlp_feed(batch), []
        for _ in range(3):
            start = time.perf_counter()
            executor.run(main, feed=feed, fetch_list=wanted, scope=scope)
            seconds.append(time.perf_counter() - start)
        if number > 1:
            times.seconds.append(seconds[0] - min(seconds[1:]))
    return times


def memory_of(mode: str, place: str) -> dict[str, float]:
    """Megabytes (of 1,000,000) of some steps; run in a process of its own."""
    import fluidlite as fluid
    from fluidlite import memory

    def resident(fact: str) -> float:
        with open("/proc/self/status", encoding="ascii") as facts:  # getrusage's peak may be that of the parent
            return next(int(line.split()[1]) for line in facts if line.startswith(fact)) * 1024 / 1e6

    executor, scope = fluid.Executor(place, mode=mode), fluid.Scope()
    main, startup, feed, wanted = deep()
    begun = resident("VmRSS")
    executor.run(startup, scope=scope)
    state = memory.used(place) / 1e6
    for _ in range(3):
        executor.run(main, feed=feed, fetch_list=wanted, scope=scope)
    growth = resident("VmHWM") - begun
    return {"state": state, "peak used": memory.peak(place) / 1e6, "growth of the process": growth}


def main() -> None:
    """Print the tables."""
    parser = options(__doc__)
    parser.add_argument("--place", default="cpu")
    parser.add_argument("--only", nargs="+", default=["chain", "gelu", "mlp", "rebind", "memory"])
    parser.add_argument("--worker", help="the mode of a process that measures memory")
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    if arguments.worker:
        print(json.dumps(memory_of(arguments.worker, arguments.place)))
        return
    rows, figures = [], {}
    scales = {"chain": (chain, 1e6 / CHAIN, "us an operator"), "gelu": (gelu, 1e3, "ms"), "mlp": (mlp, 1e3, "ms")}
    for name in arguments.only:
        if name not in scales:
            continue
        make, scale, unit = scales[name]
        program = make()
        contenders = modes(program, arguments.place)
        if name == "chain":
            contenders["bound, a computation"] = as_computation(program, arguments.place)
        times = in_turns(contenders, ROUNDS if name != "gelu" else 8, 20 if name == "chain" else 1)
        base = times["interpreted"]
        for mode, found in times.items():
            rows.append([name, mode, unit, found.median * scale, found.least * scale, base.least / found.least])
            figures[f"{name}, {mode}"] = {"unit": unit, "median": rows[-1][3], "least": rows[-1][4]}
    if "rebind" in arguments.only:
        found = rebinding(arguments.place)
        rows.append(["rebind", "another batch size", "ms", found.median * 1e3, found.least * 1e3, None])
        figures["rebind"] = {"unit": "ms", "median": found.median * 1e3, "least": found.least * 1e3}
    show(
        f"Programs on {arguments.place}, Executor.run in turns",
        ["workload", "mode", "unit", "median", "least", "times as fast"],
        rows,
    )
    if "memory" in arguments.only:
        sizes = {}
        for mode in ("interpreted", "compiled"):
            command = [sys.executable, __file__, "--worker", mode, "--place", arguments.place,
                       "--threads", str(arguments.threads)]  # fmt: skip
            sizes[mode] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        show(
            "20 layers of 2048, batch 256, SGD with momentum: megabytes",
            ["mode", *sizes["compiled"]],
            [[mode, *values.values()] for mode, values in sizes.items()],
        )
        figures["memory"] = sizes
    report(arguments.json, machine(arguments.threads), figures)


if __name__ == "__main__":
    main()
