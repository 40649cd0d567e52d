from __future__ import annotations

import struct
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import Attrs, Inputs, Outputs, ints
from fluidlite.conformance.samples import Sample, register_samples

_WORD = 2**64 - 1


def _rotated(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & _WORD


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 by its specification, on Python integers."""
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5

    def mixed(lane: int, word: int) -> int:
        return _rotated((lane + word * p2) & _WORD, 31) * p1 & _WORD

    rest = data
    if len(data) >= 32:
        lanes = [(seed + p1 + p2) & _WORD, (seed + p2) & _WORD, seed, (seed - p1) & _WORD]
        while len(rest) >= 32:
            lanes = [mixed(lane, word) for lane, word in zip(lanes, struct.unpack("<4Q", rest[:32]), strict=True)]
            rest = rest[32:]
        state = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _WORD
        for lane in lanes:
            state = ((state ^ mixed(0, lane)) * p1 + p4) & _WORD
    else:
        state = (seed + p5) & _WORD
    state = (state + len(data)) & _WORD
    while len(rest) >= 8:
        state = (_rotated(state ^ mixed(0, struct.unpack("<Q", rest[:8])[0]), 27) * p1 + p4) & _WORD
        rest = rest[8:]
    if rest:  # rows are whole 4-byte words
        state = (_rotated(state ^ struct.unpack("<I", rest)[0] * p1 & _WORD, 23) * p2 + p3) & _WORD
    state = (state ^ state >> 33) * p2 & _WORD
    state = (state ^ state >> 29) * p3 & _WORD
    return state ^ state >> 32


def _sample(name: str, x: Any, *offsets: int, **attrs: int) -> Sample:
    return Sample({"X": x}, attrs, lod={"X": (offsets,)} if offsets else {}, name=name, dtypes=(x.dtype.name,))


@register_samples(
    "hash",
    samples=lambda: [
        _sample("words", ints(8, 1, dtype="int32"), 0, 2, 8, num_hash=4, mod_by=10000),
        _sample("three_words", ints(5, 3, low=-99, dtype="int32"), num_hash=2),
        _sample("stripes_and_rest", ints(5, 19, low=-99, dtype="int32"), num_hash=2, mod_by=2**31),
        _sample("int64", ints(5, 1, low=-99), mod_by=2**63 - 1),
        _sample("int64_stripes", ints(5, 11, low=-(2**62), high=2**62), num_hash=3, mod_by=2**62 + 7),
        _sample("no_bytes", ints(3, 0)),
        _sample("no_rows", ints(0, 3)),
    ],
)
def _reference_hash(inputs: Inputs, attrs: Attrs) -> Outputs:
    x = inputs["X"]
    out = [[[xxh64(row.tobytes(), seed) % attrs["mod_by"]] for seed in range(attrs["num_hash"])] for row in x]
    return {"Out": np.asarray(out, x.dtype).reshape(x.shape[0], attrs["num_hash"], 1)}
