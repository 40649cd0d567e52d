"""chunk_eval: chunks of all sequences at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError
from fluidlite.plugin import IO, Call, Context, register_kernel

from .ragged import Array, sequences

SCHEMES: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "IOB": (2, (0,), ()),
    "IOE": (2, (), (1,)),
    "IOBES": (4, (0, 3), (2, 3)),
    "plain": (1, (), ()),
}
"""Of each scheme: how many tags a type has, those that begin a chunk, and those that end one."""


def ends_of(tags: Array, first: Array, types: int, scheme: str) -> Array:
    """For each row that begins a chunk, the row behind its last; 0 for all others."""
    kinds, begins, ends = SCHEMES[scheme]
    type, mark = tags // kinds, tags % kinds
    apart = first.copy()  # from the row before
    apart[1:] |= (type[1:] != type[:-1]) | np.isin(mark[1:], begins) | np.isin(mark[:-1], ends)
    bounds = np.flatnonzero(apart)
    found = np.zeros(len(tags), np.int64)
    found[bounds] = np.append(bounds[1:], len(tags))
    return np.where(type < types, found, 0)


@register_kernel("chunk_eval", "cpu", dtypes=("int32", "int64"))
def chunk_eval(call: Call, context: Context) -> Any:
    """Counts of chunks found, of right ones and of both, and their ratios."""
    types, scheme, excluded = (call.attr(a) for a in ("num_chunk_types", "chunk_scheme", "excluded_chunk_types"))
    kinds = SCHEMES[scheme][0]

    def run(context: Context, io: IO) -> None:
        tags, ends = {}, {}
        for slot in ("Inference", "Label"):
            each = sequences(call, io, slot, "SeqLength")
            for i, row in enumerate(each):
                wrong = row[(row < 0) | (row > types * kinds)]
                if len(wrong):
                    expected = f"a tag from 0 to {types * kinds}: {types} types of {kinds} tags, and one of no chunk"
                    raise OutOfRangeError(f"{slot} holds {wrong[0]} in sequence {i}; expected {expected}")
            tags[slot] = np.concatenate([*each, np.zeros(0, np.int64)]).astype(np.int64)
            first = np.zeros(len(tags[slot]) + 1, bool)
            first[np.cumsum([0, *map(len, each)])] = True
            ends[slot] = ends_of(tags[slot], first[:-1], types, scheme)
            ends[slot][np.isin(tags[slot] // kinds, excluded)] = 0
        both = (ends["Inference"] == ends["Label"]) & (tags["Inference"] // kinds == tags["Label"] // kinds)
        right = int(np.count_nonzero(both & (ends["Label"] > 0)))
        found, wanted = (int(np.count_nonzero(ends[slot])) for slot in ("Inference", "Label"))
        numbers = {
            "Precision": right / found if found else 0.0,
            "Recall": right / wanted if wanted else 0.0,
            "F1-Score": 2 * right / (found + wanted) if right else 0.0,
            "NumInferChunks": found,
            "NumLabelChunks": wanted,
            "NumCorrectChunks": right,
        }
        for slot, number in numbers.items():
            if io.has(slot):
                io.array(slot)[...] = number

    return run
