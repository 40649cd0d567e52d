"""Samples and the reference of fluidlite.operators.chunk_eval: each run of rows is tested for being a chunk."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import Attrs, Inputs, Lods, Outputs, ints, sequences
from fluidlite.conformance.samples import Sample, register_samples

_LETTERS = {"IOB": "BI", "IOE": "IE", "IOBES": "BIES", "plain": "I"}


def enumerated(tags: list[int], types: int, scheme: str) -> set[tuple[int, int, int]]:
    """All (begin, end, type) of runs of the type with boundaries at both ends and none inside."""
    letters = _LETTERS[scheme]
    marks = [(tag // len(letters), letters[tag % len(letters)]) for tag in tags]

    def parted(i: int) -> bool:
        if i in (0, len(marks)):
            return True
        (left, last), (right, next) = marks[i - 1], marks[i]
        return left != right or last in "ES" or next in "BS"

    return {
        (a, b, marks[a][0])
        for a in range(len(marks))
        for b in range(a + 1, len(marks) + 1)
        if marks[a][0] < types and parted(a) and parted(b) and not any(parted(i) for i in range(a + 1, b))
    }


def _samples() -> list[Sample]:
    def ragged(name: str, types: int, scheme: str, dtype: str = "int64", **attrs: Any) -> Sample:
        high = types * len(_LETTERS[scheme]) + 1
        label = ints(24, 1, high=high, dtype=dtype)
        inference = np.where(ints(24, 1, high=4, seed=1) == 0, ints(24, 1, high=high, seed=2), label).astype(dtype)
        lod = dict.fromkeys(("Inference", "Label"), ((0, 9, 9, 10, 24),))
        options = {"num_chunk_types": types, "chunk_scheme": scheme, **attrs}
        return Sample({"Inference": inference, "Label": label}, options, lod=lod, name=name, dtypes=(dtype,))

    padded = {"Inference": ints(3, 7, high=5), "Label": ints(3, 7, high=5), "SeqLength": np.array([7, 0, 4])}
    padded["Label"][0, 3] = 4
    return [
        ragged("iob", 2, "IOB"),
        ragged("ioe", 2, "IOE", "int32"),
        ragged("iobes", 2, "IOBES", excluded_chunk_types=[1]),
        ragged("plain", 3, "plain"),
        Sample(padded, {"num_chunk_types": 2, "chunk_scheme": "IOB"}, name="padded", dtypes=("int64",)),
    ]


@register_samples("chunk_eval", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs, lod: Lods) -> Outputs:
    types, scheme = attrs["num_chunk_types"], attrs["chunk_scheme"]
    rows = [sequences(inputs[slot], inputs.get("SeqLength"), lod.get(slot, ())) for slot in ("Inference", "Label")]
    if any(not 0 <= tag <= types * len(_LETTERS[scheme]) for side in rows for tags in side for tag in tags):
        raise ValueError("a tag is of no type")
    sets = [
        {
            (i, *c)
            for i, tags in enumerate(side)
            for c in enumerated(tags, types, scheme)
            if c[2] not in attrs["excluded_chunk_types"]
        }
        for side in rows
    ]
    inferred, labelled, correct = len(sets[0]), len(sets[1]), len(sets[0] & sets[1])
    precision, recall = correct / inferred if inferred else 0.0, correct / labelled if labelled else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    numbers = {"Precision": precision, "Recall": recall, "F1-Score": f1}
    counts = {"NumInferChunks": inferred, "NumLabelChunks": labelled, "NumCorrectChunks": correct}
    return {slot: np.array([n], "float64" if slot in numbers else "int64") for slot, n in {**numbers, **counts}.items()}
