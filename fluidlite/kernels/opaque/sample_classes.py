"""sample_classes: inverse transform sampling of classes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError, philox_uniform
from fluidlite.plugin import IO, Call, Context, register_kernel


@register_kernel("sample_classes", "cpu")
def sample_classes(call: Call, context: Context) -> Any:
    """Out = classes drawn with replacement."""
    total, sampler, count = call.attr("num_total_classes"), call.attr("sampler"), prod(call.dims("Out"))

    def run(context: Context, io: IO) -> None:
        uniform = np.asarray(philox_uniform(np, 0, count, io.random, 0, None)).astype(np.float64)
        if sampler == "uniform":
            classes = uniform * total
        elif sampler == "log_uniform":
            classes = np.exp(uniform * np.log(total + 1)) - 1
        else:
            probs = io.array("Probs").astype(np.float64)
            if not (probs >= 0).all() or not 0 < probs.sum() < np.inf:
                raise OutOfRangeError(
                    "Probs holds a number that is negative or infinite, or no positive one; expected "
                    "a probability for each class"
                )
            cumulative = np.cumsum(probs)
            classes = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
            classes = np.minimum(classes, np.flatnonzero(probs)[-1])
        out = io.array("Out")
        out[...] = np.clip(np.floor(classes), 0, total - 1).reshape(out.shape)

    return run
