"""Index tables of step-major order: sequences sorted by length, one contiguous run of rows for each step.

The sort is by descending length and stable: the sequences of a step are then a prefix of those of the step before
(Fluid's ``LoDTensor2BatchFunctor``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.base.lru_cache import LRUCache

Array = np.ndarray[Any, Any]
_tables: LRUCache[Array] = LRUCache(64, "tables of steps", 4 << 20)
"""All layers of a batch, and their derivatives, share tables."""


def order_table_kind(kind: str, inverse: bool) -> str:
    """The kind of the table that arranges rows, or sequences."""
    return {"rows": ("order", "rank"), "sequences": ("sequences", "ranks")}[kind][inverse]


def step_counts(offsets: Sequence[int]) -> list[int]:
    """The number of sequences that have each step."""
    return [int(n) for n in _counts(np.sort(np.diff(np.asarray(offsets, np.int64)))[::-1])]


def table_values(kind: str, flag: bool, offsets: Sequence[int]) -> Array:
    """The numbers of a table.

    ``kind``: ``"order"`` (for each row in step-major order its row in the LoD; ``flag``: step 0 is a sequence's last
    row), ``"rank"`` (the inverse), ``"sequences"``, ``"ranks"`` (the same of sequences), or a kind of
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
        rows = _concatenate([first[:n] + sign * t for t, n in enumerate(counts)])
        return rows if kind == "order" else _inverse(rows)
    begins, total, batch = np.concatenate([[0], np.cumsum(counts)]), int(lengths.sum()), len(lengths)
    sequences = [np.arange(n) for n in counts]
    last = len(counts) - 1
    next_rows = [
        np.concatenate([begins[t + 1] + p[: counts[t + 1]], np.full(counts[t] - counts[t + 1], total)])
        if t < last
        else np.full(counts[t], total)
        for t, p in enumerate(sequences)
    ]
    previous_rows = [begins[t - 1] + p if t else np.full(counts[0], total) for t, p in enumerate(sequences)]
    if kind == "ends":
        sequence = np.arange(batch)
        return np.where(sizes > 0, begins[np.maximum(sizes - 1, 0)] + sequence if flag else sequence, total)
    indices = _concatenate(previous_rows if (kind == "before") != flag else next_rows)
    if kind == "after":
        return indices
    return np.where(indices < total, batch + indices, _concatenate(sequences))


def _counts(sizes: Array) -> Array:
    longest = int(sizes[0]) if len(sizes) else 0
    return np.searchsorted(-sizes, -np.arange(longest), side="left")


def _inverse(order: Array) -> Array:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


def _concatenate(parts: list[Array]) -> Array:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
