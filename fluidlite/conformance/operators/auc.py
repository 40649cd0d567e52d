from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, Attrs, Inputs, Outputs, ints
from fluidlite.conformance.samples import Sample, register_samples


def _next_state(stat: Any, counts: Any, steps: int) -> tuple[Any, Any]:
    """Return the next state, and the counts of which the area is computed."""
    flat, buckets = stat.reshape(-1).copy(), len(counts)
    if not steps:
        flat += counts
        return flat.reshape(stat.shape), flat
    if len(flat) == steps * buckets:
        rows = np.concatenate([flat[buckets:], counts]).reshape(steps, buckets)
        return rows.reshape(stat.shape), rows.sum(0)
    start, total = flat[-1] % steps * buckets, slice(steps * buckets, (steps + 1) * buckets)
    flat[total] += counts - flat[start : start + buckets]
    flat[start : start + buckets] = counts
    flat[-1] += 1
    return flat.reshape(stat.shape), flat[total]


def _samples() -> list[Sample]:
    def inputs(rows: int, dims: tuple[int, ...], width: int = 2, times: int = 0, dtype: str = "int64") -> Any:
        score = np.asarray(ints(rows, high=129) / 128, "float32")  # exact in all floating dtypes
        stats = [ints(*dims, high=5, seed=i) for i in (3, 4)]
        if times:  # the ring's counts and their sum
            for stat in stats:
                stat[-1] = times
        predict = np.stack([1 - score, score], axis=1)[:, -width:]
        return {
            "Predict": predict,
            "Label": ints(rows, 1, high=2, seed=1, dtype=dtype),
            "StatPos": stats[0],
            "StatNeg": stats[1],
        }

    some = {"num_thresholds": 16, "slide_steps": 0}
    truths = {**inputs(9, (1, 17)), "Label": ints(9, 1, high=4)}
    none = {**inputs(5, (1, 17)), "Label": ints(5, 1, high=1), "StatPos": ints(1, 17, high=1)}
    less = inputs(2, (69,), times=3)
    for slot in ("StatPos", "StatNeg"):
        less[slot][51:68] = 0  # the sum is smaller than the oldest batch, which is subtracted
    return [
        Sample(inputs(30, (1, 17)), some, name="global", dtypes=EVERY),
        Sample(inputs(30, (1, 17)), {**some, "curve": "PR"}, name="pr"),
        Sample(inputs(30, (17,), 1, dtype="int32"), some, name="one_column_int32"),
        Sample(truths, some, name="other_labels"),
        Sample(none, some, name="no_positive"),
        Sample(inputs(0, (1, 17)), some, name="no_rows"),
        Sample(inputs(30, (1, 17)), {"num_thresholds": 16}, name="last_batch"),
        Sample(inputs(30, (35,), times=3), {"num_thresholds": 16}, name="last_batch_ring"),
        Sample(inputs(30, (3, 17)), {"num_thresholds": 16, "slide_steps": 3}, name="three_rows"),
        Sample(inputs(30, (69,), times=7), {"num_thresholds": 16, "slide_steps": 3}, name="ring"),
        Sample(less, {"num_thresholds": 16, "slide_steps": 3}, name="ring_of_less_than_none"),
        Sample(inputs(20000, (1, 8192)), {"slide_steps": 0}, name="large"),
    ]


@register_samples("auc", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    buckets = attrs["num_thresholds"] + 1
    scores, truth = inputs["Predict"][:, -1], inputs["Label"].reshape(-1) != 0
    counts = np.zeros((2, buckets), "int64")
    for score, positive in zip(scores, truth, strict=True):
        counts[int(positive), int(score * attrs["num_thresholds"])] += 1
    next_pos, pos = _next_state(inputs["StatPos"], counts[1], attrs["slide_steps"])
    next_neg, neg = _next_state(inputs["StatNeg"], counts[0], attrs["slide_steps"])
    area = sum(neg[i] * (pos[i + 1 :].sum() + pos[i] / 2) for i in range(buckets))
    auc = np.asarray([area / float(pos.sum()) / float(neg.sum()) if pos.sum() > 0 and neg.sum() > 0 else 0.0])
    return {"AUC": auc, "StatPosOut": next_pos, "StatNegOut": next_neg}
