"""auc."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import widener
from .counting import counts


@register_kernel("auc", "array", indexes=True, inplace=True)
def auc(call: Call, context: Context) -> Any:
    """StatPosOut, StatNegOut: rows of both kinds in each bucket; AUC: the area, from the highest bucket down."""
    xp, rows = context.xp, call.dims("Predict")[0]
    thresholds, steps = call.attr("num_thresholds"), call.attr("slide_steps")
    buckets, widen = thresholds + 1, widener(call.dtype("Predict"), context)
    cumulative = getattr(xp, "cumulative_sum", None) or xp.cumsum  # older namespaces lack the standard's name

    def run(context: Context, io: IO) -> None:
        score = widen(io.array("Predict")[:, -1])
        inside = (score >= 0) & (score <= 1)
        bucket = xp.where(inside, score * thresholds, xp.full_like(score, -1))
        bucket = context.check_index(xp.astype(bucket, xp.int64), buckets, io)
        positive = xp.astype(xp.reshape(io.array("Label"), (rows,)) != 0, xp.int64)
        found = xp.reshape(counts(context, 2 * bucket + positive, 2 * buckets), (buckets, 2))
        moved = {
            kind: _slid(xp, xp.reshape(io.array("Stat" + kind), (-1,)), found[:, k], steps)
            for k, kind in enumerate(("Neg", "Pos"))
        }
        for kind, (state, _) in moved.items():
            if io.has(f"Stat{kind}Out"):
                out = io.array(f"Stat{kind}Out")
                out[...] = xp.reshape(state, out.shape)
        if io.has("AUC"):
            neg, pos = (xp.astype(xp.flip(moved[kind][1]), xp.float64) for kind in ("Neg", "Pos"))
            area, pairs = xp.sum(neg * (cumulative(pos) - 0.5 * pos)), xp.sum(neg) * xp.sum(pos)
            io.array("AUC")[...] = area / xp.maximum(pairs, xp.ones_like(pairs))

    return run


def _slid(xp: Any, stat: Any, found: Any, steps: int) -> tuple[Any, Any]:
    """Return the next state, and the counts that the area is of."""
    buckets = found.shape[0]
    if not steps:
        return (stat + found,) * 2
    if stat.shape[0] == steps * buckets:
        state = xp.concat([stat[buckets:], found])
        return state, xp.sum(xp.reshape(state, (steps, buckets)), axis=0)
    ring, total, times = xp.reshape(stat[: steps * buckets], (steps, buckets)), stat[-buckets - 1 : -1], stat[-1:]
    oldest = xp.arange(steps, dtype=xp.int64)[:, None] == times % steps
    total = total + found - xp.sum(xp.where(oldest, ring, xp.zeros_like(ring)), axis=0)
    return xp.concat([xp.reshape(xp.where(oldest, found[None, :], ring), (-1,)), total, times + 1]), total
