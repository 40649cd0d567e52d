"""chunk_eval: finds and compares the chunks of all sequences at once."""

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
"""For each scheme: the number of tags of a type, the tags that begin a chunk, and those that end one."""


def ends_of(tags: Array, first: Array, types: int, scheme: str) -> Array:
    """Return for each row that begins a chunk the end of the chunk (exclusive), and 0 for all other rows."""
    type_tags, begins, ends = SCHEMES[scheme]
    type, mark = tags // type_tags, tags % type_tags
    is_boundary = first.copy()  # a boundary between this row and the one before
    is_boundary[1:] |= (type[1:] != type[:-1]) | np.isin(mark[1:], begins) | np.isin(mark[:-1], ends)
    bounds = np.flatnonzero(is_boundary)
    ends_of_chunks = np.zeros(len(tags), np.int64)
    ends_of_chunks[bounds] = np.append(bounds[1:], len(tags))
    return np.where(type < types, ends_of_chunks, 0)


@register_kernel("chunk_eval", "cpu", dtypes=("int32", "int64"))
def chunk_eval(call: Call, context: Context) -> Any:
    """Write the numbers of predicted, labelled and correct chunks, and their ratios."""
    types, scheme, excluded = (call.attr(a) for a in ("num_chunk_types", "chunk_scheme", "excluded_chunk_types"))
    type_tags = SCHEMES[scheme][0]

    def run(context: Context, io: IO) -> None:
        tags, ends = {}, {}
        for slot in ("Inference", "Label"):
            rows_of_sequences = sequences(call, io, slot, "SeqLength")
            for i, row in enumerate(rows_of_sequences):
                invalid = row[(row < 0) | (row > types * type_tags)]
                if len(invalid):
                    expected = (
                        f"a tag from 0 to {types * type_tags}: {types} types of {type_tags} tags, and one of no chunk"
                    )
                    raise OutOfRangeError(f"{slot} holds {invalid[0]} in sequence {i}; expected {expected}")
            tags[slot] = np.concatenate([*rows_of_sequences, np.zeros(0, np.int64)]).astype(np.int64)
            first = np.zeros(len(tags[slot]) + 1, bool)
            first[np.cumsum([0, *map(len, rows_of_sequences)])] = True
            ends[slot] = ends_of(tags[slot], first[:-1], types, scheme)
            ends[slot][np.isin(tags[slot] // type_tags, excluded)] = 0
        equal = (ends["Inference"] == ends["Label"]) & (tags["Inference"] // type_tags == tags["Label"] // type_tags)
        correct = int(np.count_nonzero(equal & (ends["Label"] > 0)))
        predicted, labelled = (int(np.count_nonzero(ends[slot])) for slot in ("Inference", "Label"))
        numbers = {
            "Precision": correct / predicted if predicted else 0.0,
            "Recall": correct / labelled if labelled else 0.0,
            "F1-Score": 2 * correct / (predicted + labelled) if correct else 0.0,
            "NumInferChunks": predicted,
            "NumLabelChunks": labelled,
            "NumCorrectChunks": correct,
        }
        for slot, number in numbers.items():
            if io.has(slot):
                io.array(slot)[...] = number

    return run
