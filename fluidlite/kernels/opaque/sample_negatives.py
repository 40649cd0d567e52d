"""sample_negatives: distinct classes of a log-uniform distribution, drawn in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError, philox_uniform
from fluidlite.plugin import IO, Call, Context, register_kernel

from .ragged import Array


def draw_distinct(count: int, classes: int, random: Any) -> tuple[Array, int]:
    """Return ``count`` distinct classes in the order in which they are drawn, and the number of draws."""
    samples: Array = np.zeros(0, np.int64)
    draws, block = 0, max(2 * count, 64)
    while True:
        high, low = (np.asarray(philox_uniform(np, draws, block, random, sub, None), np.float64) for sub in (0, 1))
        uniform = high + low * 2.0**-24  # 24 bits are too few for millions of classes
        block_samples = np.clip(np.exp(uniform * np.log(classes + 1)) - 1, 0, classes - 1).astype(np.int64)
        candidates = np.concatenate((samples, block_samples))
        _, first = np.unique(candidates, return_index=True)
        first.sort()
        if len(first) >= count:
            last = first[count - 1]
            return candidates[first[:count]], draws + int(last) - len(samples) + 1
        samples = candidates[first]
        draws += block


@register_kernel("sample_negatives", "cpu")
def sample_negatives(call: Call, context: Context) -> Any:
    """Samples = the labels, followed by the same drawn classes in each row."""
    count, classes = call.attr("num_samples"), call.attr("num_classes")

    def run(context: Context, io: IO) -> None:
        labels = io.array("Labels").astype(np.int64)
        invalid = labels[(labels < 0) | (labels >= classes)]
        if invalid.size:
            raise OutOfRangeError(f"Labels holds {int(invalid[0])}; expected a class from 0 to {classes - 1}")
        negatives, draws = draw_distinct(count, classes, io.random)
        samples = np.concatenate((labels, np.tile(negatives, (len(labels), 1))), axis=1)
        if io.has("Samples"):
            io.array("Samples")[...] = samples
        if io.has("Probabilities"):
            probs = np.log1p(1 / (samples + 1.0)) / np.log(classes + 1.0)
            io.array("Probabilities")[...] = probs * count if draws == count else -np.expm1(draws * np.log1p(-probs))

    return run
