"""cross."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import storer, widener


@register_kernel("cross", "array")
def cross(call: Call, context: Context) -> Any:
    """The three parts one after the other; some vectors at a time, so that temporary values stay in the cache."""
    xp, dims, widen, store = context.xp, call.dims("X"), widener(call.dtype("X"), context), storer(context)
    axis = call.attr("dim") if call.attr("dim") < len(dims) else dims.index(3)
    inner = prod(dims[axis % len(dims) + 1 :])
    outer = prod(dims) // (3 * inner)
    step = max(1, 32768 // inner)

    def run(context: Context, io: IO) -> None:
        x, y, out = (xp.reshape(io.array(slot), (outer, 3, inner)) for slot in ("X", "Y", "Out"))
        for first in range(0, outer, step):
            rows = slice(first, min(first + step, outer))
            a, b = ([widen(given[rows, i, :]) for i in range(3)] for given in (x, y))
            for i in range(3):
                j, k = (i + 1) % 3, (i + 2) % 3
                store(out[rows, i, :], a[j] * b[k] - a[k] * b[j])

    return run
