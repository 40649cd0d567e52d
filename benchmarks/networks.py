"""What a Network costs over the same model through an Executor, and what setting up layers side by side saves.

    python benchmarks/networks.py [--place PLACE] [--rounds N] [--json FILE]

A step of an MLP (784-512-512-10) and of a small one (64-64-10), with SGD and momentum, fed from host arrays; loss and
accuracy are fetched. Both run the same number of steps in turns; figures are the least of the rounds, in seconds of
the process: what else the machine does is not in them.
"""

from __future__ import annotations

import time
from typing import Any

from common import Times, fix_environment, in_turns, machine, options, report, show

SIZES = {"784-512-512-10, batch 128": ((784, 512, 512, 10), 128, 20), "64-64-10, batch 50": ((64, 64, 10), 50, 400)}


def contenders(place: str, widths: tuple[int, ...], batch: int, steps: int) -> dict[str, Any]:
    """Callables of so many steps each: by a Network, and by an Executor."""
    import numpy as np

    import fluidlite as fluid
    from fluidlite import layers, nn

    random = np.random.default_rng(0)
    data = [
        (random.random((batch, widths[0]), "float32"), random.integers(0, widths[-1], (batch, 1)))
        for _ in range(4)
    ] * (steps // 4)  # fmt: skip

    network = nn.Network([widths[0]], place, fluid.optimizer.Momentum(0.01, 0.9), "softmax_cross_entropy",
                         metrics="accuracy", seed=1)  # fmt: skip
    for width in widths[1:-1]:
        network.add_layer(nn.Dense(width, "relu"))
    network.add_layer(nn.Dense(widths[-1]))

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        hidden, label = layers.data("input", [widths[0]]), layers.data("label", [1], dtype="int64")
        for width in widths[1:-1]:
            hidden = layers.fc(hidden, width, act="relu")
        scores = layers.fc(hidden, widths[-1])
        loss = layers.mean(layers.softmax_with_cross_entropy(scores, label))
        accuracy = layers.accuracy(scores, label)
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    executor, scope = fluid.Executor(place), fluid.Scope()
    executor.run(startup, scope=scope)
    fetches = [loss, accuracy]

    def by_executor() -> float:
        total = correct = 0.0
        for x, y in data:
            found = executor.run(main, {"input": x, "label": y}, fetches, scope=scope)
            total += found[0].item()
            correct += found[1].item()
        return total

    return {"Executor": by_executor, "Network": lambda: network.batched_train(data)}


def set_up_times(place: str, rounds: int, layers_count: int = 24, width: int = 1024) -> dict[str, Times]:
    """Setting up and tearing down a deep network: all layers at once, and one after another."""
    import fluidlite as fluid
    from fluidlite import nn
    from fluidlite.nn import set_up

    def once(threads: int) -> None:
        most, set_up.MAX_THREADS = set_up.MAX_THREADS, threads
        try:
            with nn.Network([width], place, seed=1) as network:
                for _ in range(layers_count):
                    network.add_layer(nn.Dense(width))
                network.set_up()
                fluid.platform.context_pool.get_context(place).wait()
        finally:
            set_up.MAX_THREADS = most

    times: dict[str, Any] = in_turns({"side by side": lambda: once(8), "one by one": lambda: once(1)}, rounds)
    return times


def main() -> None:
    """Time, print and write."""
    parser = options(__doc__)
    parser.add_argument("--place", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    fix_environment(given.threads)
    figures: dict[str, Any] = {}
    rows = []
    for name, (widths, batch, steps) in SIZES.items():
        times = in_turns(contenders(given.place, widths, batch, steps), given.rounds, clock=time.process_time)
        executor, network = (times[who].least / steps * 1e6 for who in ("Executor", "Network"))
        rows.append((name, executor, network, network / executor))
        figures[name] = {"executor_us": executor, "network_us": network}
    show(f"A training step on {given.place}, us", ("model", "Executor", "Network", "ratio"), rows)
    times = set_up_times(given.place, max(given.rounds // 3, 3))
    beside, alone = times["side by side"].least * 1e3, times["one by one"].least * 1e3
    show("Setting up and tearing down 24 layers of 1024 x 1024, ms", ("side by side", "one by one", "ratio"),
         [(beside, alone, beside / alone)])  # fmt: skip
    figures["set_up"] = {"side_by_side_ms": beside, "one_by_one_ms": alone}
    report(given.json, machine(given.threads, place=given.place), figures)


if __name__ == "__main__":
    main()
