"""Writes docs/data_parallel.svg: one step of two processes, whose gradients are summed while backward goes on.

    python tools/data_parallel_trace_picture.py [--depth N] [--width N] [--bucket-bytes N]

mpirun starts the two; the first draws what it did and when, as measured. Run it again when buckets change.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "docs" / "data_parallel.svg"
STEPS, ROWS = 150, 64
CHILD = "FLUIDLITE_TRACE_CHILD"
ROLES = {"forward": "forward", "loss": "forward", "backward": "backward", "optimize": "updates"}


def step_spans(network: Any, feed: dict[str, Any]) -> list[Any]:
    """Train one step; return what was done and when."""
    from fluidlite.compiler.instrumentation import observing
    from fluidlite.loaders import Span

    group, spans, rows = network.group, [], {"forward": 0, "backward": 0, "updates": 0, "waiting": 0, "into buckets": 0}
    reduced: list[Any] = []
    group.trace = reduced
    last = time.perf_counter()

    def observe(seen: Any) -> None:
        nonlocal last
        now, type_ = time.perf_counter(), seen.op.type
        what = ROLES.get(seen.op.role, "forward")
        if type_ == "c_sync_comm_stream":
            what = "waiting"
        elif type_ == "c_allreduce_sum":
            what = "into buckets"
        spans.append(Span(what, rows[what], last, now))
        rows[what] += 1
        last = now

    with observing(observe):
        last = time.perf_counter()
        network.executor.run(network.program, feed, network.compile().fetches, scope=network.scope)
    group.trace = None
    sums = [span for span in reduced if span.what.startswith("the sum")]
    return [*spans, *(Span("sums", number, span.begin, span.end) for number, span in enumerate(sums))]


def seconds_of(spans: Sequence[Any]) -> float:
    return float(max(span.end for span in spans) - min(span.begin for span in spans))


def overlapped(spans: Sequence[Any]) -> tuple[float, float]:
    """Seconds of sums, and those of them before backward had ended."""
    end = max(span.end for span in spans if span.what == "backward")
    sums = [span for span in spans if span.what == "sums"]
    return sum(s.end - s.begin for s in sums), sum(max(min(s.end, end) - s.begin, 0) for s in sums)


def child(depth: int, width: int, bucket_bytes: int) -> None:
    """One of the processes: train, and draw the fastest step."""
    import numpy as np

    import fluidlite as fluid
    from fluidlite import loaders, nn
    from fluidlite.distributed import mpi, transform

    vars(mpi)["free_processors"] = lambda local: True  # else a machine without free processors shows no overlap
    transform.BUCKET_BYTES = bucket_bytes
    random = np.random.default_rng(0)
    network = nn.Network([width], "cpu", fluid.optimizer.SGD(0.01), "softmax_cross_entropy", seed=1, distributed=True)
    for _ in range(depth):
        network.add_layer(nn.Dense(width, "relu"))
    network.add_layer(nn.Dense(10))
    feed = {"input": random.random((ROWS, width), "float32"), "label": random.integers(0, 10, (ROWS, 1))}
    network.batched_train([feed, feed] * 4)
    steps = []
    for _ in range(STEPS):
        network.group.barrier()
        steps.append(step_spans(network, feed))
    if network.group.rank:
        return
    best = min(steps, key=seconds_of)
    total, hidden = overlapped(best)
    count = sum(span.what == "sums" for span in best)
    title = (
        f"A step of {seconds_of(best) * 1e3:.1f} ms: {count} sums of {total * 1e3:.1f} ms, "
        f"{hidden * 1e3:.1f} ms of them while backward goes on"
    )
    TARGET.write_text(loaders.trace_picture(best, title), encoding="utf-8")
    print(f"{TARGET}: {title}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--bucket-bytes", type=int, default=1 << 20)
    chosen = parser.parse_args()
    if os.environ.get(CHILD):
        child(chosen.depth, chosen.width, chosen.bucket_bytes)
        return
    mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    if mpirun is None:
        raise SystemExit("this needs mpirun: pip install 'fluidlite[mpi]'")
    one = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [mpirun, "-n", "2", sys.executable, *sys.argv]
    raise SystemExit(subprocess.run(command, env={**os.environ, **one, CHILD: "1"}, check=False).returncode)


if __name__ == "__main__":
    main()
