"""Writes docs/loaders.svg: a training loop whose source takes as long as its steps.

    python tools/loader_trace_picture.py

Run it again when loaders change what their workers do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite import layers, loaders
from fluidlite.platform.context_pool import get_context

TARGET = Path(__file__).resolve().parents[1] / "docs" / "loaders.svg"
ROWS, BATCHES, WARM = 128, 14, 3


def main() -> None:
    image, label = layers.data("image", [784]), layers.data("label", [1], dtype="int64")
    hidden = layers.fc(layers.fc(image, 512, act="relu"), 512, act="relu")
    loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 10), label))
    fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    get_context("cpu").threads = 1
    executor = fluid.Executor("cpu")
    executor.run(fluid.default_startup_program())
    rows = {"image": np.random.default_rng(0).random((ROWS, 784), "float32"), "label": np.zeros((ROWS, 1), np.int64)}
    seconds = []
    for _ in range(30):
        begin = time.perf_counter()
        executor.run(feed=rows, fetch_list=[loss])
        seconds.append(time.perf_counter() - begin)
    step = sorted(seconds)[15]

    def source() -> Iterator[dict[str, Any]]:
        for _ in range(BATCHES + WARM):
            time.sleep(step)  # a disk, or a network
            yield rows

    loader = loaders.BatchedLoader(source, yields="batches")
    loader.trace = spans = []
    for batch in loader:
        begin = time.perf_counter()
        executor.run(feed=batch, fetch_list=[loss])
        spans.append(loaders.Span("training", batch.number, begin, time.perf_counter()))
    shown = [span for span in spans if span.number >= WARM]
    took = max(span.end for span in shown) - min(span.begin for span in shown)
    serial = sum(span.end - span.begin for span in shown)
    title = f"{BATCHES} batches in {took * 1e3:.0f} ms; one after the other: {serial * 1e3:.0f} ms"
    TARGET.write_text(loaders.trace_picture(shown, title), encoding="utf-8")
    print(f"{TARGET}: {title}")


if __name__ == "__main__":
    main()
