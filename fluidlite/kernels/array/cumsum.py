"""cumsum and its gradient, which is a cumsum from the other end."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate, is_half, storer, widener

ENOUGH = 512
"""Elements from which on adding slices one by one beats NumPy's accumulate across them."""


def _sums(call: Call, context: Context, slots: tuple[str, str], reverse: bool) -> Any:
    xp, (given, made) = context.xp, slots
    dims = (prod(call.dims(made)),) if call.attr("flatten") or not call.dims(made) else call.dims(made)
    axis = 0 if len(dims) == 1 else call.attr("axis") % len(dims)
    grouped = (prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :]))
    exclusive, half = call.attr("exclusive"), is_half(call.dtype(given))
    # where element i of the result comes from: the sum of all before it, in the direction of the walk
    early, late = (slice(1, None), slice(None, -1)) if reverse else (slice(None, -1), slice(1, None))
    edge = -1 if reverse else 0
    if not immediate(context):
        return _pure(call, context, slots, grouped, reverse)
    by_slices = not half and grouped[2] >= 16 and grouped[0] * grouped[2] >= ENOUGH

    def run(context: Context, io: IO) -> None:
        x, out = io.array(given).reshape(grouped), io.array(made).reshape(grouped)
        if exclusive:
            x, target = x[:, early], out[:, late]
            out[:, edge] = 0
        else:
            target = out
        if not x.shape[1]:
            return
        if reverse:
            x, target = x[:, ::-1], target[:, ::-1]
        if half:
            target[...] = xp.add.accumulate(x, 1, xp.float32)
        elif by_slices:
            target[:, 0] = x[:, 0]
            for i in range(1, x.shape[1]):
                xp.add(target[:, i - 1], x[:, i], target[:, i])
        else:
            xp.add.accumulate(x, 1, target.dtype, target)

    return run


def _pure(call: Call, context: Context, slots: tuple[str, str], grouped: tuple[int, ...], reverse: bool) -> Any:
    """The same in functions of the standard."""
    xp, (given, made) = context.xp, slots
    widen, store, exclusive = widener(call.dtype(given), context), storer(context), call.attr("exclusive")

    def run(context: Context, io: IO) -> None:
        x = xp.reshape(widen(io.array(given)), grouped)
        if reverse:
            x = xp.flip(x, axis=1)
        sums = xp.cumulative_sum(x, axis=1, dtype=x.dtype)
        if exclusive:
            sums = xp.concat([xp.zeros_like(sums[:, :1, :]), sums[:, :-1, :]], axis=1)
        store(io.array(made), xp.flip(sums, axis=1) if reverse else sums)

    return run


@register_kernel("cumsum", "array")
def cumsum(call: Call, context: Context) -> Any:
    """Out[i] = X[0] + ... + X[i]."""
    return _sums(call, context, ("X", "Out"), call.attr("reverse"))


@register_kernel("cumsum_grad", "array")
def cumsum_grad(call: Call, context: Context) -> Any:
    """X@GRAD[i] = Out@GRAD[i] + ... + Out@GRAD[-1]."""
    return _sums(call, context, ("Out@GRAD", "X@GRAD"), not call.attr("reverse"))
