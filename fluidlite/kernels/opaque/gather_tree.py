"""gather_tree: all beams at once, from the last step to the first."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, register_kernel

from .common import view


@register_kernel("gather_tree", "array", options=KernelOptions(indexes=True))
def gather_tree(call: Call, context: Context) -> Any:
    """Out[t] = Ids[t] at the ancestors of the last step's beams."""
    xp, (steps, batch, beams) = context.xp, call.dims("Ids")
    count = batch * beams

    def run(context: Context, io: IO) -> None:
        ids, parents = (xp.reshape(io.array(slot), (steps, count)) for slot in ("Ids", "Parents"))
        out = view(xp, io.array("Out"), (steps, count))
        starts = xp.reshape(
            xp.arange(batch, dtype=xp.int64)[:, None] * beams + xp.zeros((1, beams), dtype=xp.int64), (count,)
        )
        at = xp.arange(count, dtype=xp.int64)
        for step in range(steps - 1, -1, -1):
            out[step, ...] = xp.take(ids[step, ...], at, axis=0)
            if step:
                chosen = context.check_index(xp.take(parents[step, ...], at, axis=0), beams, io)
                at = starts + xp.astype(chosen, xp.int64)

    return run
