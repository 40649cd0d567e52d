"""top_k: the order is by value, then by index, and NaN comes last; on every path."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .common import immediate

FEW = 16  # up to this k, repeated argmax beats sorting whole rows


@register_kernel("top_k", "array")
def top_k(call: Call, context: Context) -> Any:
    """The ``k`` greatest of each row, descending, and their columns."""
    xp, k, dims, dtype = context.xp, call.attr("k"), call.dims("X"), call.dtype("X")
    shape = (prod(dims[:-1]), dims[-1])
    floating, wide = "float" in dtype, compute_dtype(dtype)
    order = _order_on_host if immediate(context) else _stable_order(xp)

    def run(context: Context, io: IO) -> None:
        x = xp.reshape(io.array("X"), shape)
        index = order(xp, x if wide == dtype else xp.astype(x, xp.float32), k, floating)
        if io.has("Out"):
            at = xp.reshape(index + xp.arange(0, prod(shape), shape[1], dtype=index.dtype)[:, None], (-1,))
            out = io.array("Out")
            out[...] = xp.reshape(xp.take(xp.reshape(x, (-1,)), at, axis=0), out.shape)
        if io.has("Indices"):
            out = io.array("Indices")
            out[...] = xp.reshape(xp.astype(index, out.dtype), out.shape)

    return run


def _falling(x: Any, floating: bool) -> Any:
    """A key that ascends where x descends; inverting the bits of integers cannot overflow."""
    return -x if floating else ~x


def _stable_order(xp: Any) -> Callable[[Any, Any, int, bool], Any]:
    """Sorting whole rows. The standard's argsort takes ``stable``; CuPy's does not, and is always so."""
    stable = {"stable": True} if "stable" in inspect.signature(xp.argsort).parameters else {}

    def order(xp: Any, x: Any, k: int, floating: bool) -> Any:
        return xp.astype(xp.argsort(_falling(x, floating), axis=-1, **stable), xp.int64)[:, :k]

    return order


def _order_on_host(xp: Any, x: Any, k: int, floating: bool) -> Any:
    """NumPy's argmax finds the first of equal ones, and is much faster than a sort; each round hides what it found."""
    rows, columns = x.shape
    if k <= FEW and k * 4 <= columns:
        least = -xp.inf if floating else xp.iinfo(x.dtype).min
        index, starts = xp.empty((rows, k), xp.int64), xp.arange(0, rows * columns, columns)
        left = x if k == 1 else x.copy()
        flat = left.reshape(-1)
        for i in range(k):
            found = left.argmax(-1)
            index[:, i] = found
            at = starts + found
            if not (flat[at] > least).all():  # NaN, or nothing but what hides: leave it to the sort
                break
            if i + 1 < k:
                flat[at] = least
        else:
            return index
    return xp.argsort(_falling(x, floating), axis=-1, kind="stable")[:, :k]
