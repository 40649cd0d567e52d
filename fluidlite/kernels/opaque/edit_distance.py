"""edit_distance: the Levenshtein distance by dynamic programming, a row of the table at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError
from fluidlite.plugin import IO, Call, Context, register_kernel

from .ragged import Array, sequences


def distance(a: Array, b: Array) -> int:
    """Return the minimum number of insertions, deletions and substitutions that turn ``a`` into ``b``."""
    steps = np.arange(len(b) + 1)
    row = steps
    for i, token in enumerate(a.tolist(), 1):
        costs = np.concatenate(([i], np.minimum(row[1:] + 1, row[:-1] + (b != token))))
        row = np.minimum.accumulate(costs - steps) + steps  # insertions: the minimum of all to the left
    return int(row[-1])


@register_kernel("edit_distance", "cpu", dtypes=("int32", "int64"))
def edit_distance(call: Call, context: Context) -> Any:
    """Out = the distance of each pair, divided by the length of the reference if normalized."""
    normalized = call.attr("normalized")

    def run(context: Context, io: IO) -> None:
        hyps, refs = (sequences(call, io, slot, f"{slot}Length") for slot in ("Hyps", "Refs"))
        if normalized:
            for i, ref in enumerate(refs):
                if not len(ref):
                    raise OutOfRangeError(
                        f"Refs has no tokens in sequence {i}; expected one or more, for the distance "
                        "is divided by their number.\n  Do: set normalized=False"
                    )
        if io.has("SequenceNum"):
            io.array("SequenceNum")[...] = len(refs)
        if io.has("Out"):
            numbers = [distance(a, b) / (len(b) if normalized else 1) for a, b in zip(hyps, refs, strict=True)]
            io.array("Out")[...] = np.asarray(numbers, np.float32).reshape(-1, 1)

    return run
