"""Counting by class: how often, or with what weight, each index occurs."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import Context

from .common import immediate


def counts(context: Context, index: Any, bins: int, weights: Any = None) -> Any:
    """Return, for each of 0..bins-1, how often it is in ``index`` [n], or the sum of its weights [n]."""
    xp = context.xp
    if immediate(context):
        return xp.bincount(index, weights, bins)
    if weights is None:
        weights = xp.ones_like(index, dtype=xp.int64)
    scatter_add = context.array.extra("scatter_add")
    if scatter_add is not None:
        found = xp.zeros((bins,), dtype=weights.dtype)
        scatter_add(found, index, weights)
        return found
    chosen = xp.arange(bins, dtype=index.dtype)[:, None] == index[None, :]
    return xp.sum(xp.where(chosen, weights[None, :], xp.zeros_like(weights)[None, :]), axis=1, dtype=weights.dtype)
