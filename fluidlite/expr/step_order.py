"""Rows of sequences by step, the longest first: one step is a run of rows (Fluid's ``LoDTensor2BatchFunctor``).

Sequences are sorted by descending length, those of equal length in order: those that have a step are then the first of
those that have the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.base.lru_cache import LRUCache

Array = np.ndarray[Any, Any]
_tables: LRUCache[Array] = LRUCache(64, "tables of steps", 4 << 20)
"""Layers, and their derivatives, read the same of one batch."""


def order_of(kind: str, inverse: bool) -> str:
    """The table by which rows, or sequences, are arranged."""
    return {"rows": ("order", "rank"), "sequences": ("sequences", "ranks")}[kind][inverse]


def step_counts(offsets: Sequence[int]) -> list[int]:
    """How many sequences have each step."""
    return [int(n) for n in _counts(np.sort(np.diff(np.asarray(offsets, np.int64)))[::-1])]


def table_values(kind: str, flag: bool, offsets: Sequence[int]) -> Array:
    """The numbers of a table.

    ``kind``: ``"order"`` (of each row by step, where it lies in the LoD; ``flag``: step 0 is a sequence's last row),
    ``"rank"`` (the inverse), ``"sequences"``, ``"ranks"`` (of sequences), or one of
    :func:`fluidlite.expr.steps.step_table` (``flag``: backward).
    """
    key = kind, flag, tuple(offsets)
    return _tables.get(key, lambda: _table_values(*key))


def _table_values(kind: str, flag: bool, offsets: Sequence[int]) -> Array:
    ends = np.asarray(offsets, np.int64)
    lengths = np.diff(ends)
    order = np.argsort(-lengths, kind="stable")
    if kind in ("sequences", "ranks"):
        return order if kind == "sequences" else _inverse(order)
    sizes = lengths[order]
    counts = _counts(sizes)
    if kind in ("order", "rank"):
        first = (ends[1:] - 1 if flag else ends[:-1])[order]
        sign = -1 if flag else 1
        rows = _joined([first[:n] + sign * t for t, n in enumerate(counts)])
        return rows if kind == "order" else _inverse(rows)
    begins, total, batch = np.concatenate([[0], np.cumsum(counts)]), int(lengths.sum()), len(lengths)
    places = [np.arange(n) for n in counts]
    last = len(counts) - 1
    later = [
        np.concatenate([begins[t + 1] + p[: counts[t + 1]], np.full(counts[t] - counts[t + 1], total)])
        if t < last
        else np.full(counts[t], total)
        for t, p in enumerate(places)
    ]
    sooner = [begins[t - 1] + p if t else np.full(counts[0], total) for t, p in enumerate(places)]
    if kind == "ends":
        some = np.arange(batch)
        return np.where(sizes > 0, begins[np.maximum(sizes - 1, 0)] + some if flag else some, total)
    there = _joined(sooner if (kind == "before") != flag else later)
    if kind == "after":
        return there
    return np.where(there < total, batch + there, _joined(places))


def _counts(sizes: Array) -> Array:
    longest = int(sizes[0]) if len(sizes) else 0
    return np.searchsorted(-sizes, -np.arange(longest), side="left")


def _inverse(order: Array) -> Array:
    found = np.empty_like(order)
    found[order] = np.arange(len(order))
    return found


def _joined(parts: list[Array]) -> Array:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
