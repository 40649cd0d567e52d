"""ctc_align: labels of paths."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.plugin import IO, Call, Context, register_kernel

from .ragged import Array, sequences


def labels_of(path: Array, blank: int, merge: bool) -> Array:
    """The tokens that are no blanks and, if repetitions are merged, do not follow their like."""
    stays = path != blank
    if merge:
        stays[1:] &= path[1:] != path[:-1]
    labels: Array = path[stays]
    return labels


@register_kernel("ctc_align", "cpu", dtypes=("int32", "int64"))
def ctc_align(call: Call, context: Context) -> Any:
    """Output = the tokens that stay."""
    blank, merge, padding = (call.attr(name) for name in ("blank", "merge_repeated", "padding_value"))

    def run(context: Context, io: IO) -> None:
        paths = sequences(call, io, "Input", "InputLength")
        labels = [labels_of(path, blank, merge) for path in paths]
        if io.has("OutputLength"):
            lengths = io.array("OutputLength")
            lengths[...] = np.asarray([len(row) for row in labels], lengths.dtype).reshape(-1, 1)
        if io.has("Output"):
            out = io.array("Output")
            if io.has("InputLength"):
                out[...] = padding
                for row, found in zip(out, labels, strict=True):
                    row[: len(found)] = found
            elif labels:
                out[:, 0] = np.concatenate(labels)

    return run
