"""The sequences of an operand with a LoD, or of a padded operand with lengths, for kernels on the host."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError
from fluidlite.plugin import IO, Call

Array = np.ndarray[Any, Any]


def lengths_of(io: IO, slot: str, longest: int, of: str) -> Array:
    """Return the lengths in a slot; raise OutOfRangeError for a length above ``longest``, the padded size of ``of``."""
    lengths: Array = io.array(slot).reshape(-1).astype(np.int64)
    for i, n in enumerate(lengths.tolist()):
        if not 0 <= n <= longest:
            raise OutOfRangeError(
                f"{slot} holds {n} for sequence {i}; expected a length from 0 to {longest}: {of} is padded to {longest}"
            )
    return lengths


def sequences(call: Call, io: IO, slot: str, lengths: str) -> list[Array]:
    """Return the elements of each sequence of a [rows, 1] operand with LoD, or a [batch, longest] one with lengths."""
    x = io.array(slot)
    if io.has(lengths):
        x = x.reshape(x.shape[0], -1)
        return [row[:n] for row, n in zip(x, lengths_of(io, lengths, x.shape[1], slot), strict=True)]
    flat = x.reshape(-1)
    return [flat[a:b] for a, b in pairwise(call.lod(slot)[-1])]
