"""Thousands of batches with random faults; afterwards no thread, process, buffer, file or byte is left.

    python benchmarks/loader_soak.py [--batches N] [--seed N] [--places PLACE ...]

Each epoch has settings of its own: source, place, workers, processes, buffers, order, size. A fault may come at any
batch: the source, a transform or the loop raises, a worker's process is killed, the loop breaks off, the iterator is
dropped, batches are held for a while, the place is out of memory. Batches are compared with what they have to be.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite.loaders import BatchedLoader

FAULTS = ("none", "none", "source", "transform", "loop", "break", "drop", "kill", "memory", "close")
SAMPLES = 120


class Fault(Exception):
    """What is raised on purpose."""


class Rows:
    """Samples that know their numbers; reading one may go wrong."""

    def __init__(self, bad: int, kill: bool, delay: float) -> None:
        self.bad, self.kill, self.delay = bad, kill, delay
        self.parent = os.getpid()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == self.bad:
            if self.kill and os.getpid() != self.parent:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Fault(f"sample {number}")
        if self.delay:
            time.sleep(self.delay * random.random())
        return {"x": np.full(number % 7 + 2, number, np.float32)[:2], "n": np.int64(number)}

    def stream(self) -> Iterator[dict[str, Any]]:
        """The same, in order."""
        for number in range(SAMPLES):
            yield self[number]


def epoch(dice: random.Random, place: str, counts: Counter[str]) -> int:
    """One epoch with settings and a fault drawn by the dice; return how many batches came."""
    fault, size = dice.choice(FAULTS), dice.randint(1, 9)
    processes, streamed = dice.random() < 0.15 or fault == "kill", dice.random() < 0.4
    workers = 1 if streamed and processes else dice.randint(1, 3)
    buffers = dice.randint(1, 5)
    at = dice.randrange(SAMPLES)
    rows = Rows(at if fault in ("source", "kill") else -1, fault == "kill", dice.choice((0.0, 0.0, 0.0005)))

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        if fault == "transform" and sample["n"] == at:
            raise Fault("transform")
        return sample

    loader = BatchedLoader(
        rows.stream if streamed else rows, size, place, buffers=buffers, preload=dice.randint(1, buffers),
        shuffle=dice.choice((False, 7 if streamed else True)), seed=dice.randrange(99), workers=workers,
        processes=processes, persistent=processes and dice.random() < 0.5, transform=transform,
        drop_last=dice.random() < 0.5,
    )  # fmt: skip
    held: deque[Any] = deque(maxlen=dice.choice((1, 1, 2, buffers + 2)))
    seen: list[int] = []
    batch_of_fault = at // size
    if fault == "memory":
        fluid.memory.set_limit(place, fluid.memory.stats(place).reserved + dice.choice((0, 1000)))
    try:
        iterator = iter(loader)
        if fault == "drop" and dice.random() < 0.5:
            return 0
        for batch in iterator:
            numbers = batch["n"].numpy().ravel().tolist()
            seen += numbers
            held.append((batch, numbers))
            if batch.number == batch_of_fault and fault in ("loop", "break", "drop", "close"):
                if fault == "loop":
                    raise Fault("loop")
                if fault == "close":
                    loader.close()
                    continue
                break
            for old, expected in held:
                if old["x"].numpy()[:, 0].tolist() != expected or old["n"].numpy().ravel().tolist() != expected:
                    raise AssertionError(f"a batch changed: {expected}")
        else:
            wanted = SAMPLES - (SAMPLES % size if loader._settings.drop_last else 0)
            if fault != "close" and (len(seen) != wanted or len(set(seen)) != wanted):
                raise AssertionError(f"{len(seen)} samples came, {wanted} were expected")
            if fault in ("source", "transform", "kill") and at in seen:
                raise AssertionError(f"the fault of sample {at} was lost")
    except (Fault, fluid.errors.WorkerError, fluid.errors.OutOfMemoryError) as error:
        counts[type(error).__name__] += 1
    finally:
        if fault == "memory":
            fluid.memory.set_limit(place, None)
    counts[fault] += 1
    return -(-len(seen) // size)


def left(places: list[str], before: dict[str, int]) -> list[str]:
    """What there is more of than before."""
    deadline = time.monotonic() + 10
    while True:
        gc.collect()
        now = state(places)
        more = [f"{name}: {before[name]} before, {now[name]} now" for name in now if now[name] > before[name]]
        if not more or time.monotonic() > deadline:
            return more
        time.sleep(0.05)


def state(places: list[str]) -> dict[str, int]:
    """Threads, processes, files, and memory of the places."""
    found = {
        "threads": sum("loader" in thread.name for thread in threading.enumerate()),
        "processes": len(multiprocessing.active_children()),
    }
    with contextlib.suppress(OSError):
        found["files"] = len(os.listdir("/proc/self/fd"))
    for place in places:
        fluid.memory.trim(place)
        stats = fluid.memory.stats(place)
        found |= {f"{place}: used": stats.used, f"{place}: live": stats.live, f"{place}: reserved": stats.reserved}
    return found


def main() -> None:
    """Run epochs until so many batches came; exit 1 if something is left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--places", nargs="+", default=["cpu", "opencl:0", "fpga:0"])
    chosen = parser.parse_args()
    logging.getLogger("fluidlite").setLevel(logging.ERROR)
    places = [place for place in chosen.places if fluid.Place.parse(place) in fluid.places()]
    dice, counts, batches, epochs = random.Random(chosen.seed), Counter[str](), 0, 0
    for place in places:  # what a first use makes stays
        for processes in (False, True):
            list(BatchedLoader(Rows(-1, False, 0), 50, place, processes=processes))
    before, began = state(places), time.perf_counter()
    while batches < chosen.batches:
        batches += epoch(dice, dice.choice(places), counts)
        epochs += 1
    problems = left(places, before)
    print(f"{batches} batches in {epochs} epochs on {', '.join(places)}, {time.perf_counter() - began:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    print("\n".join(problems) or "nothing is left")
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
