"""Sequences of an operand, by LoD or padded beside lengths, as kernels on the host read them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError
from fluidlite.plugin import IO, Call

Array = np.ndarray[Any, Any]


def lengths_of(io: IO, slot: str, longest: int, of: str) -> Array:
    """The lengths that a slot holds; one that ``of`` is not wide enough for is an OutOfRangeError."""
    found: Array = io.array(slot).reshape(-1).astype(np.int64)
    for i, n in enumerate(found.tolist()):
        if not 0 <= n <= longest:
            raise OutOfRangeError(
                f"{slot} holds {n} for sequence {i}; expected a length from 0 to {longest}: {of} is padded to {longest}"
            )
    return found


def sequences(call: Call, io: IO, slot: str, lengths: str) -> list[Array]:
    """The numbers of each sequence of [rows, 1] with LoD, or of [batch, longest] beside lengths."""
    x = io.array(slot)
    if io.has(lengths):
        x = x.reshape(x.shape[0], -1)
        return [row[:n] for row, n in zip(x, lengths_of(io, lengths, x.shape[1], slot), strict=True)]
    flat = x.reshape(-1)
    return [flat[a:b] for a, b in pairwise(call.lod(slot)[-1])]
