"""ctc_align: the label sequences of CTC paths."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.plugin import IO, Call, Context, register_kernel

from .ragged import Array, sequences


def labels_of(path: Array, blank: int, merge: bool) -> Array:
    """Return the tokens of a path without blanks and, if ``merge``, without repetitions."""
    is_label = path != blank
    if merge:
        is_label[1:] &= path[1:] != path[:-1]
    labels: Array = path[is_label]
    return labels


@register_kernel("ctc_align", "cpu", dtypes=("int32", "int64"))
def ctc_align(call: Call, context: Context) -> Any:
    """Output = the labels of each path."""
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
                for row, row_labels in zip(out, labels, strict=True):
                    row[: len(row_labels)] = row_labels
            elif labels:
                out[:, 0] = np.concatenate(labels)

    return run
