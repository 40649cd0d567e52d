"""How far loaders hide a source behind compute, what they cost themselves, and torch's DataLoader on the same sources.

    python benchmarks/loaders.py [--places PLACE ...] [--rounds N] [--torch-python PATH] [--json FILE]

One thread of compute: a training step of an MLP. The source takes as long as the step, per batch: it waits, or it
computes in a process of its own, which stays from epoch to epoch. "one after the other" makes each batch before its
step. "processor" is what the training process spends with the loader, beside the step's own: where no core is free for
the source, these tell what the wall clock cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from common import Worker, fix_environment, in_turns, machine, options, report, show

BATCH, WIDTH, BATCHES = 128, 784, 40
RATIO, OWN_US = 1.15, 50.0
"""What is aimed at: against the slower of source and compute, and microseconds a batch."""
KINDS = ("waits", "a process")
FREE = 3000
"""Batches of a source that costs nothing."""


class Source:
    """A dataset of batches, each of which takes some seconds: of waiting, or of this process's processor."""

    def __init__(self, kind: str, seconds: float, batches: int = BATCHES) -> None:
        import numpy as np

        self.kind, self.seconds, self.batches = kind, seconds, batches
        self.x = np.random.default_rng(0).random((BATCH, WIDTH), "float32")
        self.y = np.random.default_rng(1).integers(0, 10, (BATCH, 1))

    def __call__(self) -> Iterator[dict[str, Any]]:
        for _ in range(self.batches):
            self.work()
            yield {"x": self.x, "y": self.y}

    def work(self) -> None:
        """Take the time that a batch takes."""
        if self.kind == "waits":
            time.sleep(self.seconds)
            return
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass


def step_on(place: str) -> Callable[[Any], Any]:
    """A training step on a place: 784-512-512-10, momentum, one thread."""
    import fluidlite as fluid
    from fluidlite import layers
    from fluidlite.platform.context_pool import get_context

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        image, label = layers.data("x", [WIDTH]), layers.data("y", [1], dtype="int64")
        hidden = layers.fc(layers.fc(image, 512, act="relu"), 512, act="relu")
        loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 10), label))
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    get_context(place).threads = 1
    executor, scope = fluid.Executor(place), fluid.Scope()
    executor.run(startup, scope=scope)
    return lambda feed: executor.run(main, feed=feed, fetch_list=[loss], scope=scope)


def least(call: Callable[[], Any], rounds: int, per: int) -> float:
    """The least milliseconds a batch."""
    return float(in_turns({"it": call}, rounds)["it"].least / per * 1e3)


def processor_of(call: Callable[[], Any]) -> float:
    """Seconds of processors that this process, without its children, spends on a call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def overlap(place: str, rounds: int, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Training on sources that take as long as a step."""
    import fluidlite as fluid

    step = step_on(place)
    batch = next(iter(fluid.loaders.BatchedLoader(Source("waits", 0), place=place, yields="batches")))
    step(batch)

    def compute() -> None:
        for _ in range(BATCHES):
            step(batch)

    found = []
    for kind in kinds:
        seconds = least(compute, 2, BATCHES) / 1e3
        source = Source(kind, seconds)
        process = kind != "waits"
        loader = fluid.loaders.BatchedLoader(
            source, place=place, yields="batches", processes=process, persistent=process
        )

        def alone(source: Source = source) -> None:
            for _ in source():
                pass

        def serial(source: Source = source) -> None:
            for feed in source():
                step(feed)

        def loaded(loader: Any = loader) -> None:
            for feed in loader:
                step(feed)

        ways = {"compute": compute, "source alone": alone, "one after the other": serial, "loader": loaded}
        times = {name: each.least / BATCHES * 1e3 for name, each in in_turns(ways, rounds).items()}
        for name, call in (("step's processor", compute), ("processor", loaded)):
            times[name] = min(processor_of(call) for _ in range(rounds)) / BATCHES * 1e3
        slower = max(times["compute"], times["source alone"])
        found.append({"place": place, "source": kind, **times, "ratio": times["loader"] / slower})
        loader.close()
    return found


def own_cost(place: str, rounds: int) -> dict[str, Any]:
    """Microseconds a batch of 32 samples of 64 numbers in memory: of an empty loop, and of its processors."""
    import numpy as np

    import fluidlite as fluid

    x, y = np.zeros((FREE * 32, 64), np.float32), np.zeros((FREE * 32, 1), np.int64)
    loader = fluid.loaders.BatchedLoader({"x": x, "y": y}, 32, place)
    wall, cpu = [], []
    for _ in range(rounds):
        begin, used = time.perf_counter(), time.process_time()
        for _ in loader:
            pass
        wall.append((time.perf_counter() - begin) / FREE * 1e6)
        cpu.append((time.process_time() - used) / FREE * 1e6)
    loader.close()
    return {"loader": f"fluidlite, {place}", "workers": "1 thread", "wall": min(wall), "processors": min(cpu)}


TORCH = """
import json, sys, time
import numpy as np, torch
torch.set_num_threads(1)
print(json.dumps({"version": torch.__version__}), flush=True)

class Rows(torch.utils.data.Dataset):
    def __init__(self, n):
        self.x, self.y = torch.zeros(n, 64), torch.zeros(n, 1, dtype=torch.int64)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.y[i]
    def __getitems__(self, numbers):
        return self.x[numbers], self.y[numbers]

class Stream(torch.utils.data.IterableDataset):
    def __init__(self, kind, seconds, batches, x, y):
        self.kind, self.seconds, self.batches, self.x, self.y = kind, seconds, batches, x, y
    def __iter__(self):
        for _ in range(self.batches):
            if self.kind == "waits":
                time.sleep(self.seconds)
            else:
                end = time.process_time() + self.seconds
                while time.process_time() < end:
                    pass
            yield self.x, self.y

net = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
                          torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9)

def step(x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()

def measure(call, batches):
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) / batches

for line in sys.stdin:
    asked = json.loads(line)
    if asked["what"] == "own":
        data = Rows(asked["batches"] * 32)
        loader = torch.utils.data.DataLoader(data, 32, num_workers=asked["workers"], collate_fn=lambda pair: pair)
        wall = min(measure(lambda: [None for _ in loader], asked["batches"]) for _ in range(asked["rounds"]))
        print(json.dumps({"us": wall * 1e6}), flush=True)
        continue
    n = asked["batches"]
    x, y = torch.rand(asked["rows"], 784), torch.randint(0, 10, (asked["rows"],))
    step(x, y)
    compute = min(measure(lambda: [step(x, y) for _ in range(n)], n) for _ in range(asked["rounds"]))
    stream = Stream(asked["kind"], compute, n, x, y)
    loader = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=1, persistent_workers=True)
    source = min(measure(lambda: [None for _ in stream], n) for _ in range(asked["rounds"]))
    loaded = min(measure(lambda: [step(*batch) for batch in loader], n) for _ in range(asked["rounds"]))
    print(json.dumps({"compute": compute * 1e3, "source alone": source * 1e3, "loader": loaded * 1e3}), flush=True)
"""


def beside_torch(python: str, rounds: int, kinds: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The same with torch's DataLoader, one worker process."""
    worker = Worker("PyTorch", [python, "-c", TORCH])
    own = [
        {"loader": f"torch {worker.version}", "workers": how, "processors": None,
         "wall": worker.ask(what="own", batches=FREE, workers=workers, rounds=rounds)["us"]}
        for workers, how in ((0, "none"), (1, "1 process"))
    ]  # fmt: skip
    overlaps = []
    for kind in kinds:
        times = worker.ask(what="overlap", kind=kind, rows=BATCH, batches=BATCHES, rounds=rounds)
        slower = max(times["compute"], times["source alone"])
        row = {"place": f"torch {worker.version}", "source": kind, "one after the other": None}
        overlaps.append({**row, **times, "ratio": times["loader"] / slower})
    worker.close()
    return overlaps, own


def main() -> None:
    """Measure, show, and say what is missed."""
    parser = options(__doc__)
    parser.add_argument("--places", nargs="+", default=["cpu", "opencl:0"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch-python", metavar="PATH", help="a Python that has PyTorch")
    parser.set_defaults(threads=1)
    parser.add_argument("--only", nargs="+", choices=("waits", "process", "own"), default=("waits", "process", "own"))
    chosen = parser.parse_args()
    fix_environment(chosen.threads)
    import fluidlite as fluid

    places = [place for place in chosen.places if fluid.Place.parse(place) in fluid.places()]
    kinds = [kind for kind in KINDS if kind.split()[-1] in chosen.only]
    overlaps = [row for place in places for row in overlap(place, chosen.rounds, kinds)]
    own = [own_cost(place, chosen.rounds) for place in places] if "own" in chosen.only else []
    if chosen.torch_python:
        more, costs = beside_torch(chosen.torch_python, chosen.rounds, kinds)
        overlaps, own = overlaps + more, own + costs
    keys = (
        "place",
        "source",
        "compute",
        "source alone",
        "one after the other",
        "loader",
        "ratio",
        "step's processor",
        "processor",
    )
    if overlaps:
        title = (
            f"A source that takes as long as a training step, ms a batch of {BATCH}; ratio: to the slower of the two"
        )
        show(title, keys, [[row.get(key) for key in keys] for row in overlaps])
    if own:
        heads = ("loader", "workers", "wall", "processors")
        show("A source that costs nothing, us a batch of 32", heads, [[row[head] for head in heads] for row in own])
    for row in overlaps[: len(kinds) * len(places)]:
        if row["ratio"] > RATIO:
            print(f"missed: {row['place']}, {row['source']}: {row['ratio']:.2f} times the slower; {RATIO} is aimed at")
    for row in own[: len(places) if "own" in chosen.only else 0]:
        if row["wall"] > OWN_US:
            print(f"missed: {row['loader']}: {row['wall']:.0f} us a batch; {OWN_US:.0f} is aimed at")
    report(chosen.json, machine(chosen.threads), {"overlap": overlaps, "own": own})


if __name__ == "__main__":
    main()
