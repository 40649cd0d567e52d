"""Segment primitives: over runs of rows between LoD offsets, of different lengths and possibly empty."""

from __future__ import annotations

from fluidlite.expr.functions import maximum
from fluidlite.expr.number import (
    Number,
    Numeric,
    longest_of,
    number,
    offset_count,
    offsets_leaf,
    table_count,
    table_leaf,
)
from fluidlite.expr.tensor import Tensor, cast, refuse, tensor, wide
from fluidlite.expr.tracing import current
from fluidlite.expr.views import reshape, slice_axis

KINDS = ("sum", "max", "min")


def lod_level(x: Tensor) -> int:
    """The number of levels of an operand's LoD; the trace is valid for calls with the same number."""
    if x.op != "input":
        refuse(f"the LoD of {x}; only operands have one")
    slot, i = x.params
    level = 0
    while offset_count(slot, i, level).value in current().values:
        level += 1
    return level


def offsets(x: Tensor, level: int = -1) -> Tensor:
    """The offsets of a level of an operand's LoD: the begin of each sequence and the end of the last, int64, one dim.

    They are metadata, known when the operator runs: the operand's memory is not read. Levels count from the coarsest;
    -1 is the last one, whose offsets are rows.
    """
    slot, i, at = _level(x, level)
    return tensor("offsets", (), (slot, i, offsets_leaf(slot, i, at)), (offset_count(slot, i, at),), "int64")


def table(slot: str, i: int) -> Tensor:
    """All elements of an input that is read as a table: int64, one dim, known when the operator runs."""
    return tensor("offsets", (), (slot, i, table_leaf(slot, i)), (table_count(slot, i),), "int64")


def longest(x: Tensor, level: int = -1) -> Number:
    """The length of the longest sequence of a level of an operand's LoD; 0 if it has no sequences."""
    return longest_of(*_level(x, level))


def _level(x: Tensor, level: int) -> tuple[str, int, int]:
    """The slot, the index within the slot, and the level, counted from 0, of an operand."""
    levels = lod_level(x)
    if not -levels <= level < levels:
        refuse(f"level {level} of the LoD of {x.params[0]}, which has {levels}")
    return (*x.params, level % levels)


def _offsets(offsets: Tensor) -> Tensor:
    if offsets.rank != 1 or offsets.dtype not in ("int32", "int64"):
        refuse(f"offsets are {offsets}; expected int64 of one dim")
    return cast(offsets, "int64")


def segment(kind: str, x: Tensor, offsets: Tensor) -> Tensor:
    """The ``sum``, ``max`` or ``min`` of the rows from ``offsets[i]`` to ``offsets[i + 1]``; 0 for empty segments.

    Offsets begin with 0, do not decrease, and end with the number of rows.
    """
    if kind not in KINDS:
        refuse(f"segment of kind {kind!r}")
    if not x.rank:
        refuse("segments of a tensor without dims")
    at, source = _offsets(offsets), wide(x)
    return tensor("segment", (source, at), (kind,), (at.dims[0] - 1, *source.dims[1:]), source.dtype)


def segment_of(offsets: Tensor, rows: Numeric) -> Tensor:
    """The index of the segment of each of ``rows`` rows, int64."""
    return tensor("segment_of", (_offsets(offsets),), (), (number(rows),), "int64")


def segment_sizes(offsets: Tensor) -> Tensor:
    """The number of rows of each segment, int64."""
    at = _offsets(offsets)
    count = at.dims[0] - 1
    return slice_axis(at, 0, 1, count) - slice_axis(at, 0, 0, count)


def segment_mean(x: Tensor, offsets: Tensor) -> Tensor:
    """The mean of each segment's rows; 0 for empty segments."""
    total = segment("sum", x, offsets)
    sizes = reshape(segment_sizes(offsets), (offsets.dims[0] - 1, *(1,) * (x.rank - 1)))
    return total / cast(maximum(sizes, 1), total.dtype)
