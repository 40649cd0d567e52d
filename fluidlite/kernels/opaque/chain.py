"""Recursions over the tags of a linear chain, many sequences at a time, in log space and double precision.

Scaled probabilities, as Fluid computes them, underflow when scores of one step differ by more than 87
(a forbidden transition of -1e4 is usual), and exp of a transition overflows above 88; logarithms do neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_MOST = 1 << 20  # elements of a temporary of (sequences, tags, tags)


class Chains:
    """Scores of tags and of their transitions, with the sequences that they belong to.

    ``transition``: row 0 holds the weights of first tags, row 1 of last tags, row 2 + i those of going from tag i.
    ``offsets``: where each sequence begins, and the end of the last.
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
        """Yield the rows of one step of many sequences; each row comes after its predecessor."""
        order = self.filled[np.argsort(-self.lengths[self.filled], kind="stable")]
        size = max(_MOST // max(self.tags**2, 1), 1)
        for begin in range(0, len(order), size):
            group = order[begin : begin + size]
            starts, lengths = self.starts[group], self.lengths[group]
            for time in range(int(lengths[0])):
                yield starts[: np.searchsorted(-lengths, -time, side="left")] + time

    def pairs(self) -> Iterator[Array]:
        """Yield the rows that have a predecessor, some at a time."""
        rows = np.flatnonzero(~self._starting())
        size = max(_MOST // max(self.tags**2, 1), 1)
        for begin in range(0, len(rows), size):
            yield rows[begin : begin + size]

    def forward(self) -> Array:
        """Return for each row and tag the logarithm of the sum over all ways to come there."""
        scores = np.zeros_like(self.emission)
        begun = self._starting()
        for rows in self.times():
            if begun[rows[0]]:
                scores[rows] = self.first + self.emission[rows]
            else:
                scores[rows] = self.emission[rows] + log_sum_exp(scores[rows - 1][:, :, None] + self.step, 1)
        return scores

    def backward(self) -> Array:
        """Return for each row and tag the logarithm of the sum over all ways to go on from there."""
        scores = np.zeros_like(self.emission)
        scores[self.lasts] = self.last
        begun = self._starting()
        for rows in reversed(list(self.times())):
            if not begun[rows[0]]:
                onward = (self.emission[rows] + scores[rows])[:, None, :]
                scores[rows - 1] = log_sum_exp(self.step + onward, 2)
        return scores

    def totals(self, forward: Array) -> Array:
        """Return the logarithm of the sum over all paths of each sequence that is not empty."""
        return log_sum_exp(forward[self.lasts] + self.last, 1)

    def best(self) -> Array:
        """Return the tags of the best path, row by row; of equal ones the lower tag."""
        scores, came = np.zeros_like(self.emission), np.zeros(self.emission.shape, np.int64)
        begun, steps = self._starting(), list(self.times())
        for rows in steps:
            if begun[rows[0]]:
                scores[rows] = self.first + self.emission[rows]
            else:
                ways = scores[rows - 1][:, :, None] + self.step
                came[rows] = ways.argmax(1)
                scores[rows] = self.emission[rows] + ways.max(1)
        path = np.zeros(len(self.emission), np.int64)
        path[self.lasts] = (scores[self.lasts] + self.last).argmax(1)
        for rows in reversed(steps):
            if not begun[rows[0]]:
                path[rows - 1] = came[rows, path[rows]]
        return path

    def _starting(self) -> Array:
        begun = np.zeros(len(self.emission), bool)
        begun[self.firsts] = True
        return begun


def log_sum_exp(scores: Array, axis: int) -> Array:
    """Return log(sum(exp(scores))) over an axis, without overflow; of impossible scores only it is -inf."""
    top = scores.max(axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        found: Array = np.log(np.exp(scores - top).sum(axis)) + top.squeeze(axis)
    return found
