"""Forward, backward and Viterbi recursions of a linear chain, for many sequences at a time, in log space and float64.

Scaled probabilities, as Fluid computes them, underflow when scores of one step differ by more than 87
(a forbidden transition of -1e4 is usual), and exp of a transition overflows above 88; logarithms do neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_MAX_TEMPORARY_ELEMENTS = 1 << 20  # maximum elements of a temporary [sequences, tags, tags]


class Chains:
    """The scores of tags and of transitions, for the sequences of a batch.

    ``transition``: row 0 holds the weights of first tags, row 1 those of last tags, row 2 + i those from tag i.
    ``offsets``: the first row of each sequence, and the end of the last one.
    """

    def __init__(self, emission: Array, transition: Array, offsets: Sequence[int]) -> None:
        self.emission = emission.astype(np.float64)
        weights = transition.astype(np.float64)
        self.first, self.last, self.step = weights[0], weights[1], weights[2:]
        self.tags = emission.shape[1]
        ends = np.asarray(offsets, np.int64)
        self.starts, self.lengths = ends[:-1], np.diff(ends)
        self.filled = np.flatnonzero(self.lengths)  # empty sequences have no path: they cost 0
        self.firsts = self.starts[self.filled]
        self.lasts = self.firsts + self.lengths[self.filled] - 1

    def times(self) -> Iterator[Array]:
        """Yield the rows of one time step of many sequences; each row comes after its predecessor."""
        order = self.filled[np.argsort(-self.lengths[self.filled], kind="stable")]
        size = max(_MAX_TEMPORARY_ELEMENTS // max(self.tags**2, 1), 1)
        for begin in range(0, len(order), size):
            group = order[begin : begin + size]
            starts, lengths = self.starts[group], self.lengths[group]
            for time in range(int(lengths[0])):
                yield starts[: np.searchsorted(-lengths, -time, side="left")] + time

    def pairs(self) -> Iterator[Array]:
        """Yield the rows that have a predecessor, a bounded number at a time."""
        rows = np.flatnonzero(~self._is_first())
        size = max(_MAX_TEMPORARY_ELEMENTS // max(self.tags**2, 1), 1)
        for begin in range(0, len(rows), size):
            yield rows[begin : begin + size]

    def forward(self) -> Array:
        """Return for each row and tag the log of the sum over all path prefixes that end there."""
        scores = np.zeros_like(self.emission)
        is_first = self._is_first()
        for rows in self.times():
            if is_first[rows[0]]:
                scores[rows] = self.first + self.emission[rows]
            else:
                scores[rows] = self.emission[rows] + log_sum_exp(scores[rows - 1][:, :, None] + self.step, 1)
        return scores

    def backward(self) -> Array:
        """Return for each row and tag the log of the sum over all path suffixes that start there."""
        scores = np.zeros_like(self.emission)
        scores[self.lasts] = self.last
        is_first = self._is_first()
        for rows in reversed(list(self.times())):
            if not is_first[rows[0]]:
                onward = (self.emission[rows] + scores[rows])[:, None, :]
                scores[rows - 1] = log_sum_exp(self.step + onward, 2)
        return scores

    def totals(self, forward: Array) -> Array:
        """Return the log of the sum over all paths, for each sequence that is not empty."""
        return log_sum_exp(forward[self.lasts] + self.last, 1)

    def best(self) -> Array:
        """Return the tag of each row on the best path (Viterbi); of equal scores, the lower tag."""
        scores, predecessors = np.zeros_like(self.emission), np.zeros(self.emission.shape, np.int64)
        is_first, steps = self._is_first(), list(self.times())
        for rows in steps:
            if is_first[rows[0]]:
                scores[rows] = self.first + self.emission[rows]
            else:
                candidates = scores[rows - 1][:, :, None] + self.step
                predecessors[rows] = candidates.argmax(1)
                scores[rows] = self.emission[rows] + candidates.max(1)
        path = np.zeros(len(self.emission), np.int64)
        path[self.lasts] = (scores[self.lasts] + self.last).argmax(1)
        for rows in reversed(steps):
            if not is_first[rows[0]]:
                path[rows - 1] = predecessors[rows, path[rows]]
        return path

    def _is_first(self) -> Array:
        is_first = np.zeros(len(self.emission), bool)
        is_first[self.firsts] = True
        return is_first


def log_sum_exp(scores: Array, axis: int) -> Array:
    """Return log(sum(exp(scores))) over an axis without overflow; -inf if all scores are -inf."""
    top = scores.max(axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        log_sums: Array = np.log(np.exp(scores - top).sum(axis)) + top.squeeze(axis)
    return log_sums
