"""A training step of an MLP: 784-512-512-10, batch 128, SGD with momentum; fluidlite's places and PyTorch in turns.

    python benchmarks/mlp.py [--torch-python PATH] [--json FILE]

Each contender is a process of its own, which waits while another has its turn. PyTorch runs eagerly, in this Python
or in the one that is named; without it the places run alone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

from common import Times, fix_environment, machine, options, report, show

BATCH, SIZES = 128, (784, 512, 512, 10)
RATE, MOMENTUM = 0.01, 0.9
PAUSE = 0.05  # seconds after a turn: idle OpenMP threads spin for a while before they sleep
WARM, AGAIN = 20, 3  # steps before anything is timed, and before each turn

Step = Callable[[], float]


def data() -> tuple[Any, Any]:
    """Images and labels: the same for all."""
    import numpy as np

    random = np.random.default_rng(7)
    return random.standard_normal((BATCH, SIZES[0]), np.float32), random.integers(0, SIZES[-1], (BATCH, 1))


def fluidlite_step(place: str, threads: int) -> Step:
    """Make the step on a place: feed, forward, backward, update, fetch the loss."""
    import fluidlite as fluid

    train, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(train, startup):
        image = fluid.layers.data("image", [SIZES[0]])
        label = fluid.layers.data("label", [1], dtype="int64")
        layer = image
        for size in SIZES[1:-1]:
            layer = fluid.layers.fc(layer, size, act="relu")
        logits = fluid.layers.fc(layer, SIZES[-1])
        costs: Any = fluid.layers.softmax_with_cross_entropy(logits, label)
        loss = fluid.layers.mean(costs)
        fluid.optimizer.Momentum(RATE, MOMENTUM).minimize(loss)
    executor = fluid.Executor(place, fallback="error")
    executor.run(startup)
    x, y = data()
    feed, wanted = {"image": x, "label": y}, [loss]
    return lambda: float(executor.run(train, feed=feed, fetch_list=wanted)[0][0])


def torch_step(variant: str, threads: int) -> Step:
    """Make the same step of PyTorch, eager; "fused" takes its optimiser of one kernel."""
    import torch

    torch.set_num_threads(threads)
    layers: list[Any] = []
    for given, size in pairwise(SIZES):
        layers += [torch.nn.Linear(given, size), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    more = {"fused": True} if variant == "fused" else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, **more)
    x, y = (torch.from_numpy(array) for array in data())
    y = y.reshape(-1)
    loss_of = torch.nn.functional.cross_entropy

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def worker(contender: str, threads: int) -> None:
    """Run as many steps as each line of input says; answer with their seconds and the last loss."""
    kind, _, what = contender.partition("/")
    step = (torch_step if kind == "torch" else fluidlite_step)(what, threads)
    first = step()
    for _ in range(WARM):
        step()
    version = __import__("torch" if kind == "torch" else "fluidlite").__version__
    print(json.dumps({"version": version, "first": first}), flush=True)
    for line in sys.stdin:
        for _ in range(AGAIN):
            step()
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            last = step()
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"seconds": seconds, "last": last}), flush=True)


class Contender:
    """A process that runs steps when it is asked."""

    def __init__(self, name: str, python: str, threads: int) -> None:
        self.name = name
        self.times = Times()
        command = [python, __file__, "--worker", name, "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version: str = self.answer()["version"]

    def answer(self) -> dict[str, Any]:
        """Read a line of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} stopped; what it said is above")
        found: dict[str, Any] = json.loads(line)
        return found

    def turn(self, steps: int) -> None:
        """Time some steps."""
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        self.times.seconds += self.answer()["seconds"]
        time.sleep(PAUSE)


@contextmanager
def running(name: str, python: str, threads: int) -> Iterator[Contender]:
    """Start a contender; end it afterwards."""
    contender = Contender(name, python, threads)
    try:
        yield contender
    finally:
        with contextlib.suppress(BrokenPipeError):
            assert contender.process.stdin is not None
            contender.process.stdin.close()
        contender.process.wait(timeout=30)


def names(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """The contenders and their Pythons."""
    wanted = arguments.places
    if wanted is None:
        listing = "import fluidlite; print(*fluidlite.places())"
        wanted = subprocess.run(
            [sys.executable, "-c", listing], check=True, capture_output=True, text=True
        ).stdout.split()
        wanted = [place for place in wanted if place.partition(":")[0] in ("cpu", "opencl", "cuda")]
    found = [(f"fluidlite/{place}", sys.executable) for place in wanted]
    python = arguments.torch_python or (sys.executable if importlib.util.find_spec("torch") else None)
    if python:
        found += [("torch/eager", python), ("torch/fused", python)]
    return found


def main() -> None:
    """Print the table."""
    parser = options(__doc__)
    parser.add_argument("--torch-python", metavar="PATH", help="a Python that has PyTorch")
    parser.add_argument("--places", nargs="+", metavar="PLACE", help="default: cpu, opencl and cuda, if they are there")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, default=20, help="a turn")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    if arguments.worker:
        worker(arguments.worker, arguments.threads)
        return
    with ExitStack() as stack:
        contenders = [stack.enter_context(running(*pair, arguments.threads)) for pair in names(arguments)]
        for _ in range(arguments.rounds):
            for contender in contenders:
                contender.turn(arguments.steps)
    base = contenders[0]
    rows = [
        [c.name, c.version, c.times.median * 1e3, c.times.least * 1e3,
         c.times.median / base.times.median, c.times.least / base.times.least]
        for c in contenders
    ]  # fmt: skip
    sizes = "-".join(map(str, SIZES))
    show(
        f"MLP {sizes}, batch {BATCH}, SGD with momentum: a step, {arguments.rounds} turns of {arguments.steps}",
        ["contender", "version", "ms, median", "ms, least", "to the first, median", "to the first, least"],
        rows,
    )
    figures = {
        c.name: {"version": c.version, "median_ms": c.times.median * 1e3, "least_ms": c.times.least * 1e3,
                 "steps": len(c.times.seconds)}
        for c in contenders
    }  # fmt: skip
    report(arguments.json, machine(arguments.threads), figures)


if __name__ == "__main__":
    main()
