"""Pooling windows as tensor expressions: bounds, gathered elements, reductions, and their adjoints."""

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
"""The maximum of an empty window, as in Fluid: the lowest finite number of the dtype."""


def explicit_pads(paddings: Sequence[int], spatial: int) -> list[tuple[int, int]]:
    """The attribute ``paddings`` as pairs; it has one number, or (before, after), for each spatial dim."""
    if min(paddings, default=0) < 0:
        e.fail_attr("paddings", "numbers of 0 or more")
    if len(paddings) == spatial:
        return [(p, p) for p in paddings]
    if len(paddings) == 2 * spatial:
        return list(zip(paddings[::2], paddings[1::2], strict=True))
    e.fail_attr("paddings", f"{spatial} numbers, or {2 * spatial}: before and after in each spatial dim")


def same_pads(size: e.Number, taps: e.Numeric, stride: int) -> tuple[e.Number, e.Number]:
    """The padding of SAME before and after ``size`` elements: it gives ceil(size / stride) windows."""
    padding = e.highest(((size + stride - 1) // stride - 1) * stride + taps - size, 0)
    return padding // 2, padding - padding // 2


class WindowAxis(NamedTuple):
    """Windows along one axis of a tensor.

    ``size``, ``outs``: number of elements of the axis, and of windows.
    ``taps``: elements of a window; for adaptive windows, the maximum.
    ``stride``: distance between windows; 0: adaptive windows, which divide the axis as evenly as possible and touch or
    overlap by one element.
    ``before``, ``after``: padding in front of the axis and behind it.
    ``may_be_partial``, ``may_be_empty``: whether windows may be partly, or wholly, in the padding.
    """

    axis: int
    size: e.Number
    outs: e.Number
    taps: e.Number
    stride: int
    before: e.Number
    after: e.Number
    may_be_partial: bool = False
    may_be_empty: bool = False

    @property
    def covers_axis(self) -> bool:
        """Whether a single window covers the axis."""
        return self.outs.key == "1" and self.taps.key == self.size.key

    def _column(self, line: e.Tensor, rank: int) -> e.Tensor:
        """Reshape numbers along the axis to broadcast with tensors of that rank."""
        return e.reshape(line, (*line.dims, *(1,) * (rank - self.axis - line.rank)))

    def begins(self, rank: int) -> e.Tensor:
        """Index of the first element of each window; negative in the padding."""
        o = e.iota((self.outs,), 0)
        first = o * self.stride - self.before if self.stride else _adaptive_bounds(o, self.size, self.outs)[0]
        return self._column(first, rank)

    def ends(self, rank: int) -> e.Tensor:
        """Index after the last element of each window, which may be in the padding."""
        if self.stride:
            return self.begins(rank) + self.taps
        return self._column(_adaptive_bounds(e.iota((self.outs,), 0), self.size, self.outs)[1], rank)

    def widths(self, rank: int) -> e.Tensor:
        """Number of elements in each window, without padding."""
        inside = e.minimum(self.ends(rank), self.size) - e.maximum(self.begins(rank), 0)
        return e.maximum(inside, 0) if self.may_be_empty else inside


def _adaptive_bounds(o: e.Tensor, size: e.Number, outs: e.Number) -> tuple[e.Tensor, e.Tensor]:
    """Begin and end of adaptive windows over ``size`` elements; ``outs`` is at least 1."""
    return o * size // outs, ((o + 1) * size + (outs - 1)) // outs


def max_adaptive_taps(size: e.Number, outs: e.Number) -> e.Number:
    """Number of elements of the largest adaptive window."""
    return (size + outs - 1) // outs + e.lowest(size % outs, 1)


def _gather_adaptive(x: e.Tensor, axis: int, size: e.Number, outs: e.Number) -> tuple[e.Tensor, e.Tensor]:
    """Gather adaptive windows of an axis, and their mask; missing elements repeat the last one of the window."""
    taps = max_adaptive_taps(size, outs)
    dims = (outs, taps)
    begin, end = _adaptive_bounds(e.iota(dims, 0), size, outs)
    index = begin + e.iota(dims, 1)
    valid = e.reshape(index < end, (*dims, *(1,) * (x.rank - axis - 1)))
    return e.take(x, e.minimum(index, end - 1), axis, "clamp"), valid


def _adaptive_sums(x: e.Tensor, axis: int, size: e.Number, outs: e.Number) -> e.Tensor:
    """Sums of adaptive windows of an axis: a contraction with the mask of their elements."""
    source, dims = e.wide(x), (outs, max_adaptive_taps(size, outs))
    begin, end = _adaptive_bounds(e.iota(dims, 0), size, outs)
    index = begin + e.iota(dims, 1)
    valid, names = index < end, "abcde"[: x.rank]
    front, trailing = names[:axis], names[axis + 1 :]
    parts = e.take(source, e.where(valid, index, -1), axis, "zero")
    return e.contract(parts, e.cast(valid, source.dtype), f"{front}ok{trailing},ok->{front}o{trailing}")


def with_padding(x: e.Tensor, spans: tuple[WindowAxis, ...], filler: float) -> e.Tensor:
    """Pad a tensor by the padding of its windows."""
    low: list[e.Number | int] = [0] * x.rank
    high: list[e.Number | int] = [0] * x.rank
    for span in spans:
        low[span.axis], high[span.axis] = span.before, span.after
    return e.pad(x, low, high, filler)


def without_padding(x: e.Tensor, spans: tuple[WindowAxis, ...]) -> e.Tensor:
    """Remove the padding of :func:`with_padding`."""
    starts: list[e.Number | int] = [0] * x.rank
    sizes: list[e.Number] = list(x.dims)
    for span in spans:
        starts[span.axis], sizes[span.axis] = span.before, span.size
    return e.slices(x, starts, sizes)


def windows(x: e.Tensor, span: WindowAxis) -> e.Tensor:
    """Windows of a padded tensor, along a new axis; shorter adaptive windows repeat their last element."""
    if span.covers_axis:
        return e.unsqueeze(x, span.axis)
    if not span.stride:
        return _gather_adaptive(x, span.axis, span.size, span.outs)[0]
    return e.window(x, span.axis, span.taps, span.stride)


def maximum_of(x: e.Tensor, span: WindowAxis) -> e.Tensor:
    """The maximum of each window."""
    return e.reduce_max(windows(x, span), span.axis + 1)


def total(x: e.Tensor, span: WindowAxis) -> e.Tensor:
    """The sum of each window."""
    if span.stride or span.covers_axis:
        return e.reduce_sum(windows(x, span), span.axis + 1)
    return _adaptive_sums(x, span.axis, span.size, span.outs)


def first_maximum(x: e.Tensor, span: WindowAxis) -> e.Tensor:
    """Index of the first maximum in each window, int32 [.., windows, 1, ..]; never one of the padding."""
    first = e.cast(e.argmax(windows(x, span), span.axis + 1, keep=True), "int32")
    if not span.may_be_partial:
        return first
    return e.maximum(first, e.cast(-_with_tap_axis(span.begins(x.rank), span), "int32"))


def _with_tap_axis(line: e.Tensor, span: WindowAxis) -> e.Tensor:
    return e.reshape(line, (span.outs, 1, *line.dims[1:]))


def window_sums(d: e.Tensor, span: WindowAxis) -> e.Tensor:
    """For each element, padding included, the sum of ``d`` over the windows that contain it."""
    if span.stride or span.covers_axis:
        dims = (*d.dims[: span.axis + 1], span.taps, *d.dims[span.axis + 1 :])
        return _scatter_back(e.broadcast(e.unsqueeze(d, span.axis + 1), dims), span)
    return _adaptive_sums(d, span.axis, span.outs, span.size)


def chosen_window_sums(d: e.Tensor, chosen: e.Tensor, span: WindowAxis) -> e.Tensor:
    """For each element, padding included, the sum of ``d`` over the windows in which ``chosen`` selects it."""
    if span.stride or span.covers_axis:
        return _scatter_back(e.put(e.unsqueeze(d, span.axis + 1), chosen, span.axis + 1, span.taps), span)
    places = e.squeeze(chosen, span.axis + 1) + span.begins(d.rank)
    parts, valid = _gather_adaptive(d, span.axis, span.outs, span.size)
    choices, _ = _gather_adaptive(places, span.axis, span.outs, span.size)
    element = e.reshape(e.iota((span.size,), 0), (span.size, *(1,) * (d.rank - span.axis)))
    return e.reduce_sum(e.where(e.logical_and(valid, choices == element), parts, 0), span.axis + 1)


def _scatter_back(parts: e.Tensor, span: WindowAxis) -> e.Tensor:
    if span.covers_axis:
        return e.squeeze(parts, span.axis)
    return e.unwindow(parts, span.axis, span.before + span.size + span.after, span.stride)
