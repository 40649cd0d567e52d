"""Helpers of sequence operators: rows and segments by LoD, and inference of the LoD of outputs."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.program.op_call import Call
from fluidlite.tensor.tensor_spec import Lod, Spec

_LOD_ADVICE = "declare the data with lod_level=1, or use layers.lod_reset"


def sequence_count(spec: Spec) -> int:
    """The number of sequences of the last level; -1 if it is unknown."""
    return len(spec.lod[-1]) - 1 if spec.lod else -1


def like_x(call: Call) -> dict[str, Spec]:
    """Outputs with the metadata of X, for the inference of gradients."""
    return {"Out": call.spec("X"), "Y": call.spec("X")}


def row_per_sequence(call: Call) -> dict[str, Spec]:
    """Dims of Out: a row of X for each sequence of its last level."""
    x = need_lod(call, "X")
    return {"Out": Spec.of((sequence_count(x), *x.dims[1:]), x.dtype)}


def need_sequences(x: e.Tensor, slot: str) -> None:
    """Refuse an operand without LoD."""
    if not e.lod_level(x):
        e.fail(slot, "a LoD tensor: its sequences", _LOD_ADVICE)
    if not x.rank:
        e.fail(slot, "rows of one dim or more")


def need_lod(call: Call, slot: str, i: int = 0) -> Spec:
    """The metadata of an input; refuse one without LoD."""
    spec = call.spec(slot, i)
    if not spec.lod_level:
        call.fail(slot, "a LoD tensor: its sequences", do=_LOD_ADVICE)
    return spec


class SegmentRows:
    """Rows of sequences, as int64 tensors.

    ``starts``: the offsets: the first row of each sequence, and the number of rows.
    ``segment``: for each row, the index of its sequence.
    ``begin``, ``end``: for each row, the first row of its sequence, and the row after the last.
    ``row``: the index of each row.
    """

    def __init__(self, starts: e.Tensor, rows: e.Numeric) -> None:
        self.starts = starts
        self.row = e.iota((rows,), 0)
        self.segment = e.segment_of(starts, rows)
        self.begin = e.take(starts, self.segment, 0, "clamp")
        self.end = e.take(starts, self.segment + 1, 0, "clamp")


def rows_of(x: e.Tensor, slot: str = "X") -> SegmentRows:
    """The rows of an operand, by the last level of its LoD."""
    need_sequences(x, slot)
    return SegmentRows(e.offsets(x), x.dims[0])


def starts_of(lengths: e.Tensor) -> e.Tensor:
    """The offsets of sequences of these lengths: a cumulative sum from 0."""
    return e.scan("sum", e.concat([e.full((1,), 0, "int64"), lengths], 0), 0)


def per_row(values: e.Tensor, x: e.Tensor) -> e.Tensor:
    """Reshape [rows] to [rows, 1, ...], to broadcast with x."""
    return e.reshape(values, (values.dims[0], *(1,) * (x.rank - 1)))


def spec_with_lod(dims: tuple[int, ...], like: Spec, lod: Lod, level: int) -> Spec:
    """The metadata of an output with ``level`` levels of LoD, whose offsets may be unknown (``lod`` is empty then)."""
    return Spec.of(dims, like.dtype, lod=lod, lod_level=level)
