"""CTC (connectionist temporal classification): sums over paths, all sequences at a time, in log space and float64."""

from __future__ import annotations

import numpy as np

from .chain import Array, log_sum_exp


def ctc(logits: Array, steps: Array, labels: list[Array], blank: int) -> tuple[Array, Array]:
    """Return the cost of each sequence, and its derivative by ``logits``.

    ``logits``: [longest, sequences, classes]; padding behind the steps of a sequence is ignored, with derivative 0.
    ``labels``: classes that are not ``blank``.
    The cost is 0 if no path exists: there are fewer steps than labels plus repetitions among them.
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
    is_state = np.arange(states.shape[1]) <= ends[:, None]
    skips = np.zeros(states.shape, bool)  # over the blank between two labels that differ
    skips[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    sequences = np.arange(count)
    emitted = np.where(is_state, scores[:, sequences[:, None], states], -np.inf)  # [longest, sequences, states]

    forward, backward = (np.full(emitted.shape, -np.inf) for _ in range(2))
    first, last = np.zeros(states.shape, bool), np.zeros(states.shape, bool)
    first[:, :2] = True
    for offset in (0, 1):
        at = ends - offset
        last[sequences[at >= 0], at[at >= 0]] = True
    with np.errstate(divide="ignore", invalid="ignore"):
        for t in range(longest):
            forward[t] = emitted[t] + (np.where(first, 0, -np.inf) if t == 0 else _sum_before(forward[t - 1], skips))
        onward = np.full(states.shape, -np.inf)
        for t in reversed(range(longest)):
            if t + 1 < longest:
                onward = _sum_after(backward[t + 1] + emitted[t + 1], skips)
            backward[t] = np.where((steps == t + 1)[:, None], np.where(last, 0, -np.inf), onward)
            backward[t, steps <= t] = -np.inf
        final_scores = forward[np.maximum(steps - 1, 0), sequences] if longest else np.zeros(states.shape)
        totals = log_sum_exp(np.where(last, final_scores, -np.inf), 1)
        has_path = (totals != -np.inf) & (steps > 0)  # NaN stays NaN
        totals = np.where(has_path, totals, 0)
        state_probabilities = np.exp(forward + backward - totals[None, :, None])
    is_counted = inside & has_path
    derivative = np.where(is_counted[..., None], np.exp(scores), 0)
    state_probabilities = np.where(is_counted[..., None], state_probabilities, 0)
    for state in range(states.shape[1]):  # one state of each sequence at a time: no two of one class
        derivative[:, sequences, states[:, state]] -= state_probabilities[:, :, state]
    return -totals, derivative


def _sum_before(scores: Array, skips: Array) -> Array:
    """Return the sum over each state's predecessors: itself, the one before, and the one before that if ``skips``."""
    sums = scores.copy()
    sums[:, 1:] = np.logaddexp(sums[:, 1:], scores[:, :-1])
    sums[:, 2:] = np.logaddexp(sums[:, 2:], np.where(skips[:, 2:], scores[:, :-2], -np.inf))
    return sums


def _sum_after(scores: Array, skips: Array) -> Array:
    """Return the sum over the successors of each state."""
    sums = scores.copy()
    sums[:, :-1] = np.logaddexp(sums[:, :-1], scores[:, 1:])
    sums[:, :-2] = np.logaddexp(sums[:, :-2], np.where(skips[:, 2:], scores[:, 2:], -np.inf))
    return sums
