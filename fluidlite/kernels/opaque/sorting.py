"""argsort: ordered by value, then by index."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, compute_dtype, register_kernel

from .common import is_on_host, stable_argsort

MIN_PACKED_ELEMENTS = 64
"""Minimum elements of a line: above it, sorting words that pack value and index is faster than a stable argsort."""


def descending_key(x: Any, floating: bool) -> Any:
    """Return a key that ascends where x descends; inverting the bits of integers cannot overflow."""
    return -x if floating else ~x


@register_kernel("argsort", "array", options=KernelOptions(library_backed=True))
def argsort(call: Call, context: Context) -> Any:
    """X sorted along ``axis``, NaN last, and the index of each element in X."""
    xp, dims, dtype = context.xp, call.dims("X"), call.dtype("X")
    axis, descending, floating = call.attr("axis") % len(dims), call.attr("descending"), "float" in dtype
    half = compute_dtype(dtype) != dtype
    lines = (*dims[:axis], *dims[axis + 1 :], dims[axis])
    starts = xp.arange(prod(lines[:-1]), dtype=xp.int64)[:, None] * lines[-1]
    order = host_argsort(xp) if is_on_host(context) else stable_argsort(xp)

    def run(context: Context, io: IO) -> None:
        x = xp.reshape(xp.moveaxis(io.array("X"), axis, -1), (prod(lines[:-1]), lines[-1]))
        key = xp.astype(x, xp.float32) if half else x
        index = xp.astype(order(descending_key(key, floating) if descending else key), xp.int64, copy=False)
        if io.has("Indices"):
            io.array("Indices")[...] = xp.moveaxis(xp.reshape(index, lines), -1, axis)
        if io.has("Out"):
            index = index + starts if lines[-1] != prod(lines) else index
            out = xp.take(xp.reshape(x, (-1,)), xp.reshape(index, (-1,)), axis=0)
            io.array("Out")[...] = xp.moveaxis(xp.reshape(out, lines), -1, axis)

    return run


def host_argsort(xp: Any) -> Callable[[Any], Any]:
    """Return a stable argsort that sorts words of a key and an index: NumPy sorts words faster than it argsorts."""

    def order(x: Any) -> Any:
        bits = max(x.shape[-1] - 1, 1).bit_length()
        key = _packed_key(xp, x, 64 - bits) if x.shape[-1] >= MIN_PACKED_ELEMENTS else None
        if key is None:
            return xp.argsort(x, axis=-1, kind="stable")
        key <<= xp.uint64(bits)
        key |= xp.arange(x.shape[-1], dtype=xp.uint64)
        key.sort(axis=-1)
        key &= xp.uint64((1 << bits) - 1)
        return key.view(xp.int64)

    return order


def _packed_key(xp: Any, x: Any, bits: int) -> Any:
    """Return unsigned keys of ``bits`` bits in the order of ``x``; None if the range of ``x`` does not fit."""
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
