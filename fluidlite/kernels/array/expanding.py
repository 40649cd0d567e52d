"""expand and expand_as, with gradients."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate, is_half, numpy_style, storer

SHORT = 32
"""Runs of fewer elements are doubled, or halved, rather than moved one by one."""
_BLOCK = 1 << 18
"""Elements of rows that are halved together: what halves are kept in stays in a cache."""


def _woven(part: tuple[int, ...], whole: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return dims of the whole as (times, size, times, size, ...), and those of the part beside them.

    Dims that are not repeated are joined with their neighbours.
    """
    times, sizes = [1], [1]
    for d, n in zip(part, whole, strict=True):
        repeated = n // d if d else 1
        if repeated == 1:
            sizes[-1] *= d
        else:
            times.append(repeated)
            sizes.append(d)
    woven = tuple(n for pair in zip(times, sizes, strict=True) for n in pair)
    return woven, tuple(1 if i % 2 == 0 else n for i, n in enumerate(woven))


def _is_short(context: Context, woven: tuple[int, ...]) -> bool:
    return immediate(context) and 1 < woven[-1] < SHORT and woven[-2] >= 4


def _expand(call: Call, context: Context) -> Any:
    """Out = X, repeated."""
    xp, out = context.xp, call.spec("Out")
    woven, once = _woven(call.dims("X"), out.dims)

    def run_into(context: Context, io: IO) -> None:
        io.array("Out").reshape(woven)[...] = io.array("X").reshape(once)

    def run_doubling(context: Context, io: IO) -> None:
        made, done = io.array("Out").reshape(woven), 1
        made[..., :1, :] = io.array("X").reshape(once)
        while done < woven[-2]:
            more = min(done, woven[-2] - done)
            made[..., done : done + more, :] = made[..., :more, :]
            done += more

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = xp.reshape(xp.broadcast_to(xp.reshape(io.array("X"), once), woven), out.dims)

    return run_doubling if _is_short(context, woven) else run_into if numpy_style(context) else run


def _halved(array: Any) -> Any:
    """Return the sum over the last axis but one, which stays as 1: half of it is added to the other half."""
    rest = None
    while (n := array.shape[-2]) > 1:
        if n % 2:
            last = array[..., -1:, :]
            rest = last if rest is None else rest + last
        array = array[..., : n // 2, :] + array[..., n // 2 : n // 2 * 2, :]
    return array if rest is None else array + rest


def _expand_grad(call: Call, context: Context) -> Any:
    """X@GRAD = the sum of Out@GRAD over the repetitions."""
    xp, store, dtype = context.xp, storer(context), call.dtype("X@GRAD")
    woven, once = _woven(call.dims("X@GRAD"), call.dims("Out@GRAD"))
    axes = tuple(axis for axis in range(0, len(woven), 2) if woven[axis] != 1)

    def run_into(context: Context, io: IO) -> None:
        grad = io.array("X@GRAD").reshape(once)
        xp.sum(io.array("Out@GRAD").reshape(woven), axes, grad.dtype, grad, True)

    def run_halving(context: Context, io: IO) -> None:
        grad, dout = io.array("X@GRAD").reshape(once), io.array("Out@GRAD").reshape(woven)
        many = max(1, _BLOCK // prod(woven[2:])) if woven[0] == 1 else woven[1]
        for first in range(0, woven[1], many):
            rows = (slice(None), slice(first, first + many))
            xp.sum(_halved(dout[rows]), axes, grad.dtype, grad[rows], True)

    def run(context: Context, io: IO) -> None:
        wide = xp.float32 if is_half(dtype) else getattr(xp, dtype)
        store(io.array("X@GRAD"), xp.sum(xp.reshape(io.array("Out@GRAD"), woven), axis=axes, dtype=wide))

    if is_half(dtype):
        return run
    return run_halving if _is_short(context, woven) else run_into if numpy_style(context) else run


expand = register_kernel("expand", "array")(_expand)
expand_as = register_kernel("expand_as", "array")(_expand)
expand_grad = register_kernel("expand_grad", "array")(_expand_grad)
expand_as_grad = register_kernel("expand_as_grad", "array")(_expand_grad)
