"""hash: XXH64 of each row's bytes, under several seeds."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, like
from fluidlite.operators.samples import ints


def _infer_hash(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank == 2, "X", "[rows, width]: each row is hashed")
    if x.dtype == "int32" and call.attr("mod_by") > 2**31:
        call.fail_attr("mod_by", "at most 2 ** 31: Out is int32, as X")
    return {"Out": like(x, (x.dims[0], call.attr("num_hash"), 1))}


_WORD = 2**64 - 1


def _turned(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & _WORD


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 by its specification, on Python integers."""
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5

    def mixed(lane: int, word: int) -> int:
        return _turned((lane + word * p2) & _WORD, 31) * p1 & _WORD

    rest = data
    if len(data) >= 32:
        lanes = [(seed + p1 + p2) & _WORD, (seed + p2) & _WORD, seed, (seed - p1) & _WORD]
        while len(rest) >= 32:
            lanes = [mixed(lane, word) for lane, word in zip(lanes, struct.unpack("<4Q", rest[:32]), strict=True)]
            rest = rest[32:]
        found = sum(_turned(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _WORD
        for lane in lanes:
            found = ((found ^ mixed(0, lane)) * p1 + p4) & _WORD
    else:
        found = (seed + p5) & _WORD
    found = (found + len(data)) & _WORD
    while len(rest) >= 8:
        found = (_turned(found ^ mixed(0, struct.unpack("<Q", rest[:8])[0]), 27) * p1 + p4) & _WORD
        rest = rest[8:]
    if rest:  # rows are whole 4-byte words
        found = (_turned(found ^ struct.unpack("<I", rest)[0] * p1 & _WORD, 23) * p2 + p3) & _WORD
    found = (found ^ found >> 33) * p2 & _WORD
    found = (found ^ found >> 29) * p3 & _WORD
    return found ^ found >> 32


def _reference_hash(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    out = [[[xxh64(row.tobytes(), seed) % attrs["mod_by"]] for seed in range(attrs["num_hash"])] for row in x]
    return {"Out": np.asarray(out, x.dtype).reshape(x.shape[0], attrs["num_hash"], 1)}


register_op(
    "hash",
    inputs=("X",),
    outputs=("Out",),
    attrs=(
        Attr("num_hash", "int", 1, minimum=1, doc="how many hashes: the seeds are 0, 1, ..."),
        Attr("mod_by", "int", 100000, minimum=1, maximum=2**63 - 1, doc="hashes are taken modulo this"),
    ),
    infer=_infer_hash,
    dtypes={"X": INTS},
    reference=_reference_hash,
    samples=lambda: [
        Sample({"X": ints(8, 1, dtype="int32")}, {"num_hash": 4, "mod_by": 10000}, lod={"X": ((0, 2, 8),)},
               name="words", dtypes=("int32",)),
        Sample({"X": ints(5, 3, low=-99, dtype="int32")}, {"num_hash": 2}, name="three_words", dtypes=("int32",)),
        Sample({"X": ints(5, 19, low=-99, dtype="int32")}, {"num_hash": 2, "mod_by": 2**31}, name="stripes_and_rest",
               dtypes=("int32",)),
        Sample({"X": ints(5, 1, low=-99)}, {"mod_by": 2**63 - 1}, name="int64", dtypes=("int64",)),
        Sample({"X": ints(5, 11, low=-(2**62), high=2**62)}, {"num_hash": 3, "mod_by": 2**62 + 7},
               name="int64_stripes", dtypes=("int64",)),
        Sample({"X": ints(3, 0)}, {}, name="no_bytes", dtypes=("int64",)),
        Sample({"X": ints(0, 3)}, {}, name="no_rows", dtypes=("int64",)),
    ],
    doc="Out[i, j, 0] = XXH64 of the bytes of X[i] under seed j, modulo mod_by",
    memory="where arrays compute, the state of each row's hash, some ten words of 64 bits, and a copy of X",
    source="Fluid hash_op.cc",
)  # fmt: skip
