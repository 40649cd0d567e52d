"""concat and its gradient, split."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, parts_of, register_kernel

from .source import part
from .strided import mover, steps_of


def lay(call: Call, context: Context) -> Any:
    """Copy tensors into a whole, side by side along an axis, or out of it."""
    parts = parts_of(call)
    dims, dtype = call.dims(parts.whole), call.dtype(parts.whole)
    steps = steps_of(dims)
    moves = []
    for i, (size, end) in enumerate(zip(parts.sizes, accumulate(parts.sizes), strict=True)):
        own_dims = (*dims[: parts.axis], size, *dims[parts.axis + 1 :])
        own, start = steps_of(own_dims), (end - size) * steps[parts.axis] * ITEMSIZE[dtype]
        between = (own, steps) if parts.joins else (steps, own)
        if call.spec(parts.parts, i).size:
            moves.append((i, start, mover(context, dtype, dtype, own_dims, *between)))

    def run(context: Context, io: IO) -> None:
        whole = io.span(parts.whole)
        for i, start, move in moves:
            if parts.joins:
                move(context, io.span(parts.parts, i), part(whole, start))
            else:
                move(context, part(whole, start), io.span(parts.parts, i))

    return run


concat = register_kernel("concat", "dialect")(lay)
concat_grad = register_kernel("concat_grad", "dialect")(lay)
split = register_kernel("split", "dialect")(lay)
