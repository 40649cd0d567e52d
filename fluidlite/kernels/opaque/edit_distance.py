"""edit_distance: Levenshtein's table, a row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError
from fluidlite.plugin import IO, Call, Context, register_kernel

from .ragged import Array, sequences


def distance(a: Array, b: Array) -> int:
    """The fewest insertions, deletions and substitutions that make ``b`` of ``a``."""
    steps = np.arange(len(b) + 1)
    row = steps
    for i, token in enumerate(a.tolist(), 1):
        ways = np.concatenate(([i], np.minimum(row[1:] + 1, row[:-1] + (b != token))))
        row = np.minimum.accumulate(ways - steps) + steps  # insertions: any way further left, and a step for each
    return int(row[-1])


@register_kernel("edit_distance", "cpu", dtypes=("int32", "int64"))
def edit_distance(call: Call, context: Context) -> Any:
    """Out = the distance of each pair, divided by the length of the right one if normalized."""
    normalized = call.attr("normalized")

    def run(context: Context, io: IO) -> None:
        found, right = (sequences(call, io, slot, f"{slot}Length") for slot in ("Hyps", "Refs"))
        if normalized:
            for i, ref in enumerate(right):
                if not len(ref):
                    raise OutOfRangeError(
                        f"Refs has no tokens in sequence {i}; expected one or more, for the distance "
                        "is divided by their number.\n  Do: set normalized=False"
                    )
        if io.has("SequenceNum"):
            io.array("SequenceNum")[...] = len(right)
        if io.has("Out"):
            numbers = [distance(a, b) / (len(b) if normalized else 1) for a, b in zip(found, right, strict=True)]
            io.array("Out")[...] = np.asarray(numbers, np.float32).reshape(-1, 1)

    return run
