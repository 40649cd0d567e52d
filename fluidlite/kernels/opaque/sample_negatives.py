"""sample_negatives: different classes of a log-uniform distribution, drawn in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError, philox_uniform
from fluidlite.plugin import IO, Call, Context, register_kernel

from .ragged import Array


def draw_different(count: int, classes: int, random: Any) -> tuple[Array, int]:
    """Different classes in the order in which they are drawn, and after how many tries there are enough."""
    drawn: Array = np.zeros(0, np.int64)
    tried, block = 0, max(2 * count, 64)
    while True:
        high, low = (np.asarray(philox_uniform(np, tried, block, random, sub, None), np.float64) for sub in (0, 1))
        uniform = high + low * 2.0**-24  # 24 bits do not reach every class of millions
        found = np.clip(np.exp(uniform * np.log(classes + 1)) - 1, 0, classes - 1).astype(np.int64)
        together = np.concatenate((drawn, found))
        _, first = np.unique(together, return_index=True)
        first.sort()
        if len(first) >= count:
            last = first[count - 1]
            return together[first[:count]], tried + int(last) - len(drawn) + 1
        drawn = together[first]
        tried += block


@register_kernel("sample_negatives", "cpu")
def sample_negatives(call: Call, context: Context) -> Any:
    """Samples are the labels, and behind them the same drawn classes in each row."""
    count, classes = call.attr("num_samples"), call.attr("num_classes")

    def run(context: Context, io: IO) -> None:
        labels = io.array("Labels").astype(np.int64)
        wrong = labels[(labels < 0) | (labels >= classes)]
        if wrong.size:
            raise OutOfRangeError(f"Labels holds {int(wrong[0])}; expected a class from 0 to {classes - 1}")
        drawn, tries = draw_different(count, classes, io.random)
        samples = np.concatenate((labels, np.tile(drawn, (len(labels), 1))), axis=1)
        if io.has("Samples"):
            io.array("Samples")[...] = samples
        if io.has("Probabilities"):
            once = np.log1p(1 / (samples + 1.0)) / np.log(classes + 1.0)
            io.array("Probabilities")[...] = once * count if tries == count else -np.expm1(tries * np.log1p(-once))

    return run
