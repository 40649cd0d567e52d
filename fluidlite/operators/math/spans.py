"""Windows of a pooling as tensors: what they hold, where they lie, and what goes back from each to its elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fluidlite import expr as e

LOWEST = {
    "float16": -65504.0,
    "bfloat16": -(2 - 2.0**-7) * 2.0**127,
    "float32": -(2 - 2.0**-23) * 2.0**127,
    "float64": -(2 - 2.0**-52) * 2.0**1023,
}
"""The maximum of no elements, as Fluid has it: the lowest number of the dtype."""


def explicit_pads(paddings: Sequence[int], spatial: int) -> list[tuple[int, int]]:
    """The attribute ``paddings`` as pairs: it has a number, or (before, after), for each spatial dim."""
    if min(paddings, default=0) < 0:
        e.fail_attr("paddings", "numbers of 0 or more")
    if len(paddings) == spatial:
        return [(p, p) for p in paddings]
    if len(paddings) == 2 * spatial:
        return list(zip(paddings[::2], paddings[1::2], strict=True))
    e.fail_attr("paddings", f"{spatial} numbers, or {2 * spatial}: before and after in each spatial dim")


def same_pads(size: e.Number, taps: e.Numeric, stride: int) -> tuple[e.Number, e.Number]:
    """The padding before and after ``size`` elements of which SAME makes one window for each ``stride``."""
    lacking = e.highest(((size + stride - 1) // stride - 1) * stride + taps - size, 0)
    return lacking // 2, lacking - lacking // 2


class Span(NamedTuple):
    """Windows along one axis of a tensor.

    ``size``, ``outs``: elements of the axis, and how many windows there are.
    ``taps``: elements of a window; of adaptive ones, the most that one has.
    ``stride``: the distance between two; 0: adaptive windows, which divide the axis as evenly as they can and touch or
    overlap by one.
    ``before``, ``after``: elements that are missing in front of the first window's, and behind the last one's.
    ``ragged``, ``void``: whether windows may be partly, or wholly, outside.
    """

    axis: int
    size: e.Number
    outs: e.Number
    taps: e.Number
    stride: int
    before: e.Number
    after: e.Number
    ragged: bool = False
    void: bool = False

    @property
    def whole(self) -> bool:
        """Whether one window is all of the axis."""
        return self.outs.key == "1" and self.taps.key == self.size.key

    def _column(self, line: e.Tensor, rank: int) -> e.Tensor:
        """Numbers along the axis, beside tensors of that rank."""
        return e.reshape(line, (*line.dims, *(1,) * (rank - self.axis - line.rank)))

    def begins(self, rank: int) -> e.Tensor:
        """The first element of each window, in the padding too."""
        o = e.iota((self.outs,), 0)
        return self._column(o * self.stride - self.before if self.stride else _shares(o, self.size, self.outs)[0], rank)

    def ends(self, rank: int) -> e.Tensor:
        """Behind the last element of each window, in the padding too."""
        if self.stride:
            return self.begins(rank) + self.taps
        return self._column(_shares(e.iota((self.outs,), 0), self.size, self.outs)[1], rank)

    def widths(self, rank: int) -> e.Tensor:
        """How many elements each window has that are not padding."""
        inside = e.minimum(self.ends(rank), self.size) - e.maximum(self.begins(rank), 0)
        return e.maximum(inside, 0) if self.void else inside


def _shares(o: e.Tensor, size: e.Number, outs: e.Number) -> tuple[e.Tensor, e.Tensor]:
    """Where shares of ``size`` elements begin and end that are as even as they can be; ``outs`` at least 1."""
    return o * size // outs, ((o + 1) * size + (outs - 1)) // outs


def most_shared(size: e.Number, outs: e.Number) -> e.Number:
    """Elements of the largest of the shares."""
    return (size + outs - 1) // outs + e.lowest(size % outs, 1)


def _shared(x: e.Tensor, axis: int, size: e.Number, outs: e.Number) -> tuple[e.Tensor, e.Tensor]:
    """Shares of an axis of ``size`` elements, and which of their elements there are; where none is, the last stands."""
    taps = most_shared(size, outs)
    dims = (outs, taps)
    begin, end = _shares(e.iota(dims, 0), size, outs)
    at = begin + e.iota(dims, 1)
    there = e.reshape(at < end, (*dims, *(1,) * (x.rank - axis - 1)))
    return e.take(x, e.minimum(at, end - 1), axis, "clamp"), there


def _shared_sum(x: e.Tensor, axis: int, size: e.Number, outs: e.Number) -> e.Tensor:
    """The sums of shares of an axis of ``size`` elements: a product with a matrix of ones."""
    source, dims = e.wide(x), (outs, most_shared(size, outs))
    begin, end = _shares(e.iota(dims, 0), size, outs)
    at = begin + e.iota(dims, 1)
    there, names = at < end, "abcde"[: x.rank]
    front, behind = names[:axis], names[axis + 1 :]
    parts = e.take(source, e.where(there, at, -1), axis, "zero")
    return e.contract(parts, e.cast(there, source.dtype), f"{front}ok{behind},ok->{front}o{behind}")


def padded(x: e.Tensor, spans: tuple[Span, ...], filler: float) -> e.Tensor:
    """The tensor with what its windows have outside of it."""
    low: list[e.Number | int] = [0] * x.rank
    high: list[e.Number | int] = [0] * x.rank
    for span in spans:
        low[span.axis], high[span.axis] = span.before, span.after
    return e.pad(x, low, high, filler)


def unpadded(x: e.Tensor, spans: tuple[Span, ...]) -> e.Tensor:
    """The tensor without that."""
    starts: list[e.Number | int] = [0] * x.rank
    sizes: list[e.Number] = list(x.dims)
    for span in spans:
        starts[span.axis], sizes[span.axis] = span.before, span.size
    return e.slices(x, starts, sizes)


def windows(x: e.Tensor, span: Span) -> e.Tensor:
    """Windows of a padded tensor; where adaptive ones have fewer elements than others, their last stands again."""
    if span.whole:
        return e.unsqueeze(x, span.axis)
    if not span.stride:
        return _shared(x, span.axis, span.size, span.outs)[0]
    return e.window(x, span.axis, span.taps, span.stride)


def maximum_of(x: e.Tensor, span: Span) -> e.Tensor:
    """The maximum of each window."""
    return e.reduce_max(windows(x, span), span.axis + 1)


def total(x: e.Tensor, span: Span) -> e.Tensor:
    """The sum of each window."""
    if span.stride or span.whole:
        return e.reduce_sum(windows(x, span), span.axis + 1)
    return _shared_sum(x, span.axis, span.size, span.outs)


def first_maximum(x: e.Tensor, span: Span) -> e.Tensor:
    """Which of its elements is the first maximum of each window, int32 [.., windows, 1, ..]; padding is none."""
    found = e.cast(e.argmax(windows(x, span), span.axis + 1, keep=True), "int32")
    return e.maximum(found, e.cast(-_kept(span.begins(x.rank), span), "int32")) if span.ragged else found


def _kept(line: e.Tensor, span: Span) -> e.Tensor:
    return e.reshape(line, (span.outs, 1, *line.dims[1:]))


def window_sums(d: e.Tensor, span: Span) -> e.Tensor:
    """Each element's sum of ``d`` over the windows that it lies in, padding too."""
    if span.stride or span.whole:
        dims = (*d.dims[: span.axis + 1], span.taps, *d.dims[span.axis + 1 :])
        return _back(e.broadcast(e.unsqueeze(d, span.axis + 1), dims), span)
    return _shared_sum(d, span.axis, span.outs, span.size)


def chosen_window_sums(d: e.Tensor, chosen: e.Tensor, span: Span) -> e.Tensor:
    """Each element's sum of ``d`` over the windows of which it is the one that ``chosen`` names."""
    if span.stride or span.whole:
        return _back(e.put(e.unsqueeze(d, span.axis + 1), chosen, span.axis + 1, span.taps), span)
    places = e.squeeze(chosen, span.axis + 1) + span.begins(d.rank)
    parts, there = _shared(d, span.axis, span.outs, span.size)
    at, _ = _shared(places, span.axis, span.outs, span.size)
    mine = e.reshape(e.iota((span.size,), 0), (span.size, *(1,) * (d.rank - span.axis)))
    return e.reduce_sum(e.where(e.logical_and(there, at == mine), parts, 0), span.axis + 1)


def _back(parts: e.Tensor, span: Span) -> e.Tensor:
    if span.whole:
        return e.squeeze(parts, span.axis)
    return e.unwindow(parts, span.axis, span.before + span.size + span.after, span.stride)
