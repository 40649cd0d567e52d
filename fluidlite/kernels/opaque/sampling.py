"""sampling_id and random_crop, with the random numbers of the step."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.kernel_support import philox_uniform, random_windows
from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .common import is_numpy_style, view


@register_kernel("sampling_id", "array")
def sampling_id(call: Call, context: Context) -> Any:
    """Out = the first class at which the cumulative sum exceeds the row's random number, else the last class."""
    xp, (rows, classes) = context.xp, call.dims("X")
    dtype = getattr(xp, compute_dtype(call.dtype("X")))
    low, span = call.attr("min"), call.attr("max") - call.attr("min")
    cumulative_sum = getattr(xp, "cumulative_sum", None) or xp.cumsum
    standard = not is_numpy_style(context)

    def run(context: Context, io: IO) -> None:
        x = io.array("X")
        device = x.device if standard else None
        thresholds = xp.astype(philox_uniform(xp, 0, rows, io.random, 0, device), dtype) * span + low
        exceeds = cumulative_sum(xp.astype(x, dtype), axis=1) > thresholds[:, None]
        first = xp.argmax(xp.astype(exceeds, xp.uint8), axis=1)
        io.array("Out")[...] = xp.where(xp.any(exceeds, axis=1), first, xp.full_like(first, classes - 1))

    return run


@register_kernel("random_crop", "array")
def random_crop(call: Call, context: Context) -> Any:
    """Out[i] = a block of X[i] at a random offset."""
    dims, shape = call.dims("X"), call.attr("shape")
    batch_dims, cropped_dims = dims[: -len(shape)], dims[-len(shape) :]
    count, max_starts = prod(batch_dims), [size - part for size, part in zip(cropped_dims, shape, strict=True)]

    def run(context: Context, io: IO) -> None:
        xp = context.xp
        windows, next_seed = random_windows(int(io.tensor("Seed").numpy().reshape(-1)[0]), count, max_starts)
        if io.has("Out"):
            x = xp.reshape(io.array("X"), (count, *cropped_dims))
            out = view(xp, io.array("Out"), (count, *shape))
            for i, window in enumerate(windows):
                out[i, ...] = x[(i, *(slice(at, at + part) for at, part in zip(window, shape, strict=True)))]
        if io.has("SeedOut"):
            io.array("SeedOut")[...] = next_seed

    return run
