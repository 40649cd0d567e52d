"""argsort: by value, then by index."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, compute_dtype, register_kernel

from .common import immediate, stable_argsort

PACKED = 64
"""Elements of a line from which sorting one word a pair of value and index beats a stable argsort."""


def falling(x: Any, floating: bool) -> Any:
    """A key that ascends where x descends; inverting the bits of integers cannot overflow."""
    return -x if floating else ~x


@register_kernel("argsort", "array", options=KernelOptions(library_backed=True))
def argsort(call: Call, context: Context) -> Any:
    """X in order along ``axis``, NaN last, and where each element was."""
    xp, dims, dtype = context.xp, call.dims("X"), call.dtype("X")
    axis, descending, floating = call.attr("axis") % len(dims), call.attr("descending"), "float" in dtype
    half = compute_dtype(dtype) != dtype
    lines = (*dims[:axis], *dims[axis + 1 :], dims[axis])
    starts = xp.arange(prod(lines[:-1]), dtype=xp.int64)[:, None] * lines[-1]
    order = order_on_host(xp) if immediate(context) else stable_argsort(xp)

    def run(context: Context, io: IO) -> None:
        x = xp.reshape(xp.moveaxis(io.array("X"), axis, -1), (prod(lines[:-1]), lines[-1]))
        key = xp.astype(x, xp.float32) if half else x
        index = xp.astype(order(falling(key, floating) if descending else key), xp.int64, copy=False)
        if io.has("Indices"):
            io.array("Indices")[...] = xp.moveaxis(xp.reshape(index, lines), -1, axis)
        if io.has("Out"):
            index = index + starts if lines[-1] != prod(lines) else index
            out = xp.take(xp.reshape(x, (-1,)), xp.reshape(index, (-1,)), axis=0)
            io.array("Out")[...] = xp.moveaxis(xp.reshape(out, lines), -1, axis)

    return run


def order_on_host(xp: Any) -> Callable[[Any], Any]:
    """NumPy sorts words much faster than it argsorts: a key beside its index in one word makes the order stable."""

    def order(x: Any) -> Any:
        bits = max(x.shape[-1] - 1, 1).bit_length()
        key = _word(xp, x, 64 - bits) if x.shape[-1] >= PACKED else None
        if key is None:
            return xp.argsort(x, axis=-1, kind="stable")
        key <<= xp.uint64(bits)
        key |= xp.arange(x.shape[-1], dtype=xp.uint64)
        key.sort(axis=-1)
        key &= xp.uint64((1 << bits) - 1)
        return key.view(xp.int64)

    return order


def _word(xp: Any, x: Any, bits: int) -> Any:
    """Unsigned numbers of so many bits, in the order of ``x``; None if it has too many values."""
    if x.dtype == xp.float32:
        key = (x + xp.float32(0)).view(xp.int32)  # 0 and -0 are one value
        key ^= (key >> 31) & 0x7FFFFFFF
        key[x != x] = 0x7FFFFFFF
        low = -(2**31)
    elif x.dtype.kind == "i":
        key, low = x, int(x.min())
        if int(x.max()) - low >= 1 << bits:
            return None
    else:
        return None
    wide = xp.subtract(key, low, dtype=xp.int64) if low > -(2**62) else None
    return None if wide is None else wide.view(xp.uint64)
