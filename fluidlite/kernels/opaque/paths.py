"""Sums over the paths of connectionist temporal classification, all sequences at a time, in logarithms and float64."""

from __future__ import annotations

import numpy as np

from .chain import Array, log_sum_exp


def ctc(logits: Array, steps: Array, labels: list[Array], blank: int) -> tuple[Array, Array]:
    """The cost of each sequence, and its derivative by ``logits``.

    ``logits``: what stands behind the steps of a sequence does not count; its derivative is 0.
    ``labels``: classes that are not ``blank``.
    The cost is 0 where there are fewer steps than labels and repetitions among them: no path exists.
    """
    longest, count, _ = logits.shape
    if not count:
        return np.zeros(0), np.zeros(logits.shape)
    inside = np.arange(longest)[:, None] < steps
    scores = np.where(inside[..., None], logits, 0).astype(np.float64)
    scores -= scores.max(2, keepdims=True)
    scores -= np.log(np.exp(scores).sum(2, keepdims=True))
    sizes = np.array([len(label) for label in labels])
    states = np.full((count, 2 * sizes.max() + 1), blank)  # blank, label, blank, label, ..., blank
    for row, label in zip(states, labels, strict=True):
        row[1 : 2 * len(label) : 2] = label
    ends = 2 * sizes
    real = np.arange(states.shape[1]) <= ends[:, None]
    skips = np.zeros(states.shape, bool)  # over the blank between two labels that differ
    skips[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    which = np.arange(count)
    seen = np.where(real, scores[:, which[:, None], states], -np.inf)  # [longest, sequences, states]

    forward, backward = (np.full(seen.shape, -np.inf) for _ in range(2))
    first, last = np.zeros(states.shape, bool), np.zeros(states.shape, bool)
    first[:, :2] = True
    for back in (0, 1):
        at = ends - back
        last[which[at >= 0], at[at >= 0]] = True
    with np.errstate(divide="ignore", invalid="ignore"):
        for t in range(longest):
            forward[t] = seen[t] + (np.where(first, 0, -np.inf) if t == 0 else _from(forward[t - 1], skips))
        onward = np.full(states.shape, -np.inf)
        for t in reversed(range(longest)):
            if t + 1 < longest:
                onward = _back(backward[t + 1] + seen[t + 1], skips)
            backward[t] = np.where((steps == t + 1)[:, None], np.where(last, 0, -np.inf), onward)
            backward[t, steps <= t] = -np.inf
        stopped = forward[np.maximum(steps - 1, 0), which] if longest else np.zeros(states.shape)
        totals = log_sum_exp(np.where(last, stopped, -np.inf), 1)
        possible = (totals != -np.inf) & (steps > 0)  # NaN stays NaN
        totals = np.where(possible, totals, 0)
        passes = np.exp(forward + backward - totals[None, :, None])
    counted = inside & possible
    derivative = np.where(counted[..., None], np.exp(scores), 0)
    passes = np.where(counted[..., None], passes, 0)
    for state in range(states.shape[1]):  # one state of each sequence at a time: no two of one class
        derivative[:, which, states[:, state]] -= passes[:, :, state]
    return -totals, derivative


def _from(scores: Array, skips: Array) -> Array:
    """The sum over the states that a path may come from: the same, the one before, or the one before that."""
    found = scores.copy()
    found[:, 1:] = np.logaddexp(found[:, 1:], scores[:, :-1])
    found[:, 2:] = np.logaddexp(found[:, 2:], np.where(skips[:, 2:], scores[:, :-2], -np.inf))
    return found


def _back(scores: Array, skips: Array) -> Array:
    """The sum over the states that a path may go on to."""
    found = scores.copy()
    found[:, :-1] = np.logaddexp(found[:, :-1], scores[:, 1:])
    found[:, :-2] = np.logaddexp(found[:, :-2], np.where(skips[:, 2:], scores[:, 2:], -np.inf))
    return found
