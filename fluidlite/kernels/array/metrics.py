"""accuracy."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate


@register_kernel("accuracy", "array")
def accuracy(call: Call, context: Context) -> Any:
    """Accuracy = Correct / Total, where a row is correct if any of its indices is its label."""
    xp, rows, on_host = context.xp, call.dims("Indices")[0], immediate(context)

    def run(context: Context, io: IO) -> None:
        hit = io.array("Indices") == xp.reshape(io.array("Label"), (rows, 1))
        if on_host:
            correct = xp.count_nonzero(hit.any(1))
        else:
            correct = xp.sum(xp.astype(xp.any(hit, axis=1), xp.int32), dtype=xp.int32)
        if io.has("Accuracy"):
            out = io.array("Accuracy")
            out[...] = (correct if on_host else xp.astype(correct, out.dtype)) / max(rows, 1)
        if io.has("Correct"):
            io.array("Correct")[...] = correct
        if io.has("Total"):
            io.array("Total")[...] = rows

    return run
