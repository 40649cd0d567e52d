"""argsort with its gradient, arg_max and arg_min: by value, then by index."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .common import immediate
from .rows import each_find, matrix, row_adder, stable_argsort

PACKED = 64
"""Elements of a line from which sorting one word a pair of value and index beats a stable argsort."""


def falling(x: Any, floating: bool) -> Any:
    """A key that ascends where x descends; inverting the bits of integers cannot overflow."""
    return -x if floating else ~x


@register_kernel("argsort", "array", vendor=True)
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


def along_axis(call: Call, context: Context, axis: int) -> Any:
    """X@GRAD = Out@GRAD at Indices along ``axis``, else 0; an index comes once a line."""
    dims, count = call.dims("X@GRAD"), call.dims("Indices")[axis]
    outer, inner = prod(dims[:axis]), prod(dims[axis + 1 :])
    find = each_find(call, "Indices", (outer, count, inner), dims[axis])
    put = context.array.extra("put_along_axis")

    def run_on_host(context: Context, io: IO) -> None:
        grad, rows = io.array("X@GRAD"), find(context, io)
        if count != dims[axis]:
            grad[...] = 0
        grad.reshape(-1)[rows] = io.array("Out@GRAD").reshape(-1)

    def run_by_line(context: Context, io: IO) -> None:
        grad = io.array("X@GRAD")
        grad[...] = 0
        put(grad, io.array("Indices"), io.array("Out@GRAD"), axis)

    if put is not None:
        return run_on_host if immediate(context) else run_by_line
    add = row_adder(matrix(call, "X@GRAD", 1), call.dtype("X@GRAD"), context)
    return lambda context, io: add(io.array("X@GRAD"), find(context, io), io.array("Out@GRAD"))


@register_kernel("argsort_grad", "array", indexes=True)
def argsort_grad(call: Call, context: Context) -> Any:
    """X@GRAD[Indices[i]] = Out@GRAD[i] along the axis."""
    return along_axis(call, context, call.attr("axis") % len(call.dims("X@GRAD")))


def _arg(call: Call, context: Context, name: str, extreme: str) -> Any:
    xp, dims, dtype = context.xp, call.dims("X"), call.dtype("X")
    floating, half = "float" in dtype, compute_dtype(dtype) != dtype
    axis = call.attr("axis") % len(dims)
    shape = (1, prod(dims), 1) if call.attr("flatten") else (prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :]))
    find, best = getattr(xp, name), getattr(xp, extreme)
    on_host = immediate(context)

    def run(context: Context, io: IO) -> None:
        x, out = xp.reshape(io.array("X"), shape), io.array("Out")
        if half:
            x = xp.astype(x, xp.float32)
        found = None
        if on_host and shape[2] > 1:
            found = _by_columns(xp, x, best, floating)
        elif not on_host and floating:  # the standard leaves open what NaN is
            found = _with_nan(xp, x, find)
        if found is None:
            found = find(x, axis=1)
        out[...] = xp.reshape(xp.astype(found, out.dtype), out.shape)

    return run


def _by_columns(xp: Any, x: Any, best: Any, floating: bool) -> Any:
    """Where the extremes along a strided axis are: NumPy finds them fast, but not their places."""
    outer, _, inner = x.shape
    found = xp.empty((outer, inner), xp.int64)
    for i in range(outer):
        held = best(x[i], axis=0)
        if floating and xp.isnan(held).any():
            return None
        rows, columns = xp.nonzero(x[i] == held)
        found[i, columns[::-1]] = rows[::-1]  # of several the first one is written last
    return found


def _with_nan(xp: Any, x: Any, find: Any) -> Any:
    nan = xp.isnan(x)
    first = xp.argmax(xp.astype(nan, xp.uint8), axis=1)
    return xp.where(xp.any(nan, axis=1), first, find(xp.where(nan, xp.zeros_like(x), x), axis=1))


@register_kernel("arg_max", "array")
def arg_max(call: Call, context: Context) -> Any:
    """Where the largest is; the first of equal ones, the first NaN if there is one."""
    return _arg(call, context, "argmax", "max")


@register_kernel("arg_min", "array")
def arg_min(call: Call, context: Context) -> Any:
    """Where the least is; the first of equal ones, the first NaN if there is one."""
    return _arg(call, context, "argmin", "min")
