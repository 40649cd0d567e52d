"""sampling_id and random_crop."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.kernel_support import philox_uniform, random_windows
from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .common import numpy_style, view


@register_kernel("sampling_id", "array")
def sampling_id(call: Call, context: Context) -> Any:
    """The first class at which the running sum exceeds the row's random number, else the last."""
    xp, (rows, classes) = context.xp, call.dims("X")
    dtype = getattr(xp, compute_dtype(call.dtype("X")))
    low, span = call.attr("min"), call.attr("max") - call.attr("min")
    running = getattr(xp, "cumulative_sum", None) or xp.cumsum
    standard = not numpy_style(context)

    def run(context: Context, io: IO) -> None:
        x = io.array("X")
        device = x.device if standard else None
        drawn = xp.astype(philox_uniform(xp, 0, rows, io.random, 0, device), dtype) * span + low
        beyond = running(xp.astype(x, dtype), axis=1) > drawn[:, None]
        first = xp.argmax(xp.astype(beyond, xp.uint8), axis=1)
        io.array("Out")[...] = xp.where(xp.any(beyond, axis=1), first, xp.full_like(first, classes - 1))

    return run


@register_kernel("random_crop", "array")
def random_crop(call: Call, context: Context) -> Any:
    """Out[i] = a block of X[i] at a random place."""
    dims, shape = call.dims("X"), call.attr("shape")
    kept, whole = dims[: -len(shape)], dims[-len(shape) :]
    count, rooms = prod(kept), [size - part for size, part in zip(whole, shape, strict=True)]

    def run(context: Context, io: IO) -> None:
        xp = context.xp
        windows, following = random_windows(int(io.tensor("Seed").numpy().reshape(-1)[0]), count, rooms)
        if io.has("Out"):
            x = xp.reshape(io.array("X"), (count, *whole))
            out = view(xp, io.array("Out"), (count, *shape))
            for i, window in enumerate(windows):
                out[i, ...] = x[(i, *(slice(at, at + part) for at, part in zip(window, shape, strict=True)))]
        if io.has("SeedOut"):
            io.array("SeedOut")[...] = following

    return run
