"""top_k: ordered by value, then by index, NaN last; the same on every code path."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, compute_dtype, register_kernel

from .common import is_on_host, stable_argsort
from .sorting import descending_key

MIN_PARTITIONED_COLUMNS = 1024
"""Minimum columns for a partition at the k-th largest element: with fewer, a sort of the row is as fast."""
MAX_ARGMAX_K = 16
"""Maximum k for repeated argmax: above it, a sort of the rows is faster."""


@register_kernel("top_k", "array", options=KernelOptions(library_backed=True))
def top_k(call: Call, context: Context) -> Any:
    """The ``k`` largest elements of each row, descending, and their columns."""
    xp, dims, dtype = context.xp, call.dims("X"), call.dtype("X")
    k = call.dims("Out" if call.has("Out") else "Indices")[-1]
    shape = (prod(dims[:-1]), dims[-1])
    floating, wide = "float" in dtype, compute_dtype(dtype)
    order = _order_on_host if is_on_host(context) else _stable_order(xp)

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
    """Return the order by a stable sort of the rows."""
    argsort = stable_argsort(xp)

    def order(xp: Any, x: Any, k: int, floating: bool) -> Any:
        return xp.astype(argsort(descending_key(x, floating)), xp.int64)[:, :k]

    return order


def _order_on_host(xp: Any, x: Any, k: int, floating: bool) -> Any:
    """Return the order, for a small k by repeated argmax: it finds the first of equal elements, then overwrites it."""
    rows, columns = x.shape
    if k <= MAX_ARGMAX_K and k * 4 <= columns:
        minimum = -xp.inf if floating else xp.iinfo(x.dtype).min
        index, starts = xp.empty((rows, k), xp.int64), xp.arange(0, rows * columns, columns)
        remaining = x if k == 1 else x.copy()
        flat = remaining.reshape(-1)
        for i in range(k):
            indices = remaining.argmax(-1)
            index[:, i] = indices
            at = starts + indices
            if not (flat[at] > minimum).all():  # NaN, or only overwritten elements: sort instead
                break
            if i + 1 < k:
                flat[at] = minimum
        else:
            return index
    if columns >= MIN_PARTITIONED_COLUMNS and k * 4 <= columns:
        indices = [_partitioned_order(xp, row, k, floating) for row in x]
        if all(row is not None for row in indices):
            return xp.stack(indices)
    return xp.argsort(descending_key(x, floating), axis=-1, kind="stable")[:, :k]


def _partitioned_order(xp: Any, row: Any, k: int, floating: bool) -> Any:
    """Return the order of the elements from the ``k``-th largest on; None if one is NaN, which NumPy puts first."""
    largest = xp.partition(row, row.size - k)[row.size - k :]
    if floating and xp.isnan(largest).any():
        return None
    candidates = xp.nonzero(row >= largest[0])[0]
    return candidates[xp.argsort(descending_key(row[candidates], floating), kind="stable")[:k]]
