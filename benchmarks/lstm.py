"""What a training step of an LSTM costs over ragged sequences, over padded ones, and in PyTorch if it is there.

    python benchmarks/lstm.py [--place PLACE] [--rounds N] [--json FILE]

Batch 32, 50 steps, 256 numbers a step, hidden 256; the ragged batch has lengths from 5 to 50. A step is the product of
the input with its weight, the LSTM, the mean of its squares, the gradients and an SGD update. All run in turns; figures
are the least of the rounds, in milliseconds of the process: what else the machine does is not in them.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

from common import fix_environment, in_turns, machine, options, report, show

BATCH, STEPS, HIDDEN = 32, 50, 256


def _dynamic(place: str, lengths: list[int], new: bool = False) -> Callable[[], Any]:
    """A step over sequences by LoD; ``new``: over others at each call, which no call had before."""
    import numpy as np

    import fluidlite as fluid
    from fluidlite import layers

    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [HIDDEN], lod_level=1)
        hidden, _ = layers.dynamic_lstm(layers.fc(x, 4 * HIDDEN, bias_attr=False), 4 * HIDDEN, use_peepholes=False)
        loss = layers.mean(hidden * hidden)
        fluid.optimizer.SGD(0.01).minimize(loss)
    executor = fluid.Executor(place, fallback="allow")
    executor.run(startup, scope=scope)
    rows = np.random.default_rng(0).normal(size=(sum(lengths), HIDDEN)).astype("float32")
    feed = {"x": fluid.create_lod_tensor(rows, [lengths], fluid.CPUPlace())}
    if not new:
        return lambda: executor.run(main, feed, [loss], scope=scope)
    drawn = np.random.default_rng(2)

    def step() -> Any:
        mine = [int(n) for n in drawn.permutation(lengths)]
        feed = {"x": fluid.create_lod_tensor(rows, [mine], fluid.CPUPlace())}
        return executor.run(main, feed, [loss], scope=scope)

    return step


def _padded(place: str) -> Callable[[], Any]:
    """A step of ``layers.lstm``, over sequences of one length."""
    import numpy as np

    import fluidlite as fluid
    from fluidlite import layers

    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [STEPS, BATCH, HIDDEN], append_batch_size=False)
        zero = layers.fill_constant([1, BATCH, HIDDEN], "float32", 0.0)
        hidden, _, _ = layers.lstm(x, zero, zero, STEPS, HIDDEN, 1)
        loss = layers.mean(hidden * hidden)
        fluid.optimizer.SGD(0.01).minimize(loss)
    executor = fluid.Executor(place, fallback="allow")
    executor.run(startup, scope=scope)
    feed = {"x": np.random.default_rng(0).normal(size=(STEPS, BATCH, HIDDEN)).astype("float32")}
    return lambda: executor.run(main, feed, [loss], scope=scope)


def _torch(threads: int) -> Callable[[], Any]:
    """The same step in PyTorch, eagerly."""
    import torch

    torch.set_num_threads(threads)
    model = torch.nn.LSTM(HIDDEN, HIDDEN)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(STEPS, BATCH, HIDDEN)

    def step() -> float:
        optimizer.zero_grad()
        hidden, _ = model(x)
        loss = (hidden * hidden).mean()
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def main() -> None:
    """Time, print and write."""
    parser = options(__doc__)
    parser.add_argument("--place", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    fix_environment(given.threads)
    import numpy as np

    lengths = [int(n) for n in np.random.default_rng(1).integers(5, STEPS + 1, BATCH)]
    contenders = {
        "dynamic_lstm, ragged": _dynamic(given.place, lengths),
        "dynamic_lstm, ragged, not planned before": _dynamic(given.place, lengths, new=True),
        "dynamic_lstm, padded": _dynamic(given.place, [STEPS] * BATCH),
        "lstm, padded": _padded(given.place),
    }
    if importlib.util.find_spec("torch") is not None:
        contenders["torch, padded"] = _torch(given.threads)
    times = in_turns(contenders, given.rounds, clock=time.process_time)
    padded = times["lstm, padded"].least
    rows = [(name, found.least * 1e3, found.least / padded) for name, found in times.items()]
    show(f"A training step on {given.place}, ms; {sum(lengths)} of {STEPS * BATCH} steps are ragged",
         ("step", "ms", "to lstm, padded"), rows)  # fmt: skip
    if "torch, padded" not in contenders:
        print("\nPyTorch is not installed here: no peer was measured.")
    facts = machine(given.threads, place=given.place)
    report(given.json, facts, {name: found.least * 1e3 for name, found in times.items()})


if __name__ == "__main__":
    main()
