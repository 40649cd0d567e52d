"""top_k: the order is by value, then by index, and NaN comes last; on every path."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, compute_dtype, register_kernel

from .common import immediate, stable_argsort
from .sorting import falling

MANY = 1024  # columns from which finding the k-th largest first beats sorting a whole row
FEW = 16  # up to this k, repeated argmax beats sorting whole rows


@register_kernel("top_k", "array", options=KernelOptions(library_backed=True))
def top_k(call: Call, context: Context) -> Any:
    """The ``k`` greatest of each row, descending, and their columns."""
    xp, dims, dtype = context.xp, call.dims("X"), call.dtype("X")
    k = call.dims("Out" if call.has("Out") else "Indices")[-1]
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


def _stable_order(xp: Any) -> Callable[[Any, Any, int, bool], Any]:
    """Sorting whole rows."""
    argsort = stable_argsort(xp)

    def order(xp: Any, x: Any, k: int, floating: bool) -> Any:
        return xp.astype(argsort(falling(x, floating)), xp.int64)[:, :k]

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
    if columns >= MANY and k * 4 <= columns:
        found = [_among_the_largest(xp, row, k, floating) for row in x]
        if all(row is not None for row in found):
            return xp.stack(found)
    return xp.argsort(falling(x, floating), axis=-1, kind="stable")[:, :k]


def _among_the_largest(xp: Any, row: Any, k: int, floating: bool) -> Any:
    """The order of what is not below the ``k``-th largest; None if a NaN, which NumPy puts first here, is."""
    least = xp.partition(row, row.size - k)[row.size - k :]
    if floating and xp.isnan(least).any():
        return None
    places = xp.nonzero(row >= least[0])[0]
    return places[xp.argsort(falling(row[places], floating), kind="stable")[:k]]
