"""What operators on sequences share: rows of sequences by LoD, and inference of the LoD that they make."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.program.op_call import Call
from fluidlite.tensor.tensor_spec import Lod, Spec

_DO = "declare the data with lod_level=1, or use layers.lod_reset"


def count(spec: Spec) -> int:
    """How many sequences of the last level there are; -1 if it is not known yet."""
    return len(spec.lod[-1]) - 1 if spec.lod else -1


def as_x(call: Call) -> dict[str, Spec]:
    """Dims of the outputs that are those of X, for the inference of gradients."""
    return {"Out": call.spec("X"), "Y": call.spec("X")}


def a_row_a_sequence(call: Call) -> dict[str, Spec]:
    """Dims of Out: a row of X for each sequence of its last level."""
    x = need_lod(call, "X")
    return {"Out": Spec.of((count(x), *x.dims[1:]), x.dtype)}


def need_sequences(x: e.Tensor, slot: str) -> None:
    """Refuse an operand that has no sequences."""
    if not e.lod_level(x):
        e.fail(slot, "a LoD tensor: its sequences", _DO)
    if not x.rank:
        e.fail(slot, "rows of one dim or more")


def need_lod(call: Call, slot: str, i: int = 0) -> Spec:
    """The metadata of an input, which has sequences."""
    spec = call.spec(slot, i)
    if not spec.lod_level:
        call.fail(slot, "a LoD tensor: its sequences", do=_DO)
    return spec


class Rows:
    """The rows of the sequences of a level of LoD.

    ``starts``: int64, where sequences begin, and where the last ends.
    ``of``: int64, the number of each row's sequence.
    ``begin``, ``end``: int64, where each row's sequence begins and ends.
    ``row``: int64, the number of each row.
    """

    def __init__(self, starts: e.Tensor, rows: e.Numeric) -> None:
        self.starts = starts
        self.row = e.iota((rows,), 0)
        self.of = e.segment_of(starts, rows)
        self.begin = e.take(starts, self.of, 0, "clamp")
        self.end = e.take(starts, self.of + 1, 0, "clamp")


def rows_of(x: e.Tensor, slot: str = "X") -> Rows:
    """The rows of an operand, by the last level of its LoD."""
    need_sequences(x, slot)
    return Rows(e.offsets(x), x.dims[0])


def starts_of(lengths: e.Tensor) -> e.Tensor:
    """Where sequences of these lengths begin, and where the last ends: their running sum."""
    return e.scan("sum", e.concat([e.full((1,), 0, "int64"), lengths], 0), 0)


def per_row(values: e.Tensor, x: e.Tensor) -> e.Tensor:
    """A number a row, [rows], as [rows, 1, ...], to stand beside x."""
    return e.reshape(values, (values.dims[0], *(1,) * (x.rank - 1)))


def spec_with_lod(dims: tuple[int, ...], like: Spec, lod: Lod, level: int) -> Spec:
    """The metadata of an output with a LoD of its own, of which the levels are known and perhaps not the offsets."""
    return Spec.of(dims, like.dtype, lod=lod, lod_level=level)
