"""Pooling: pool2d, pool3d, and max pooling that also returns indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.math.pool_windows import (
    LOWEST,
    WindowAxis,
    chosen_window_sums,
    explicit_pads,
    first_maximum,
    max_adaptive_taps,
    maximum_of,
    same_pads,
    total,
    window_sums,
    windows,
    with_padding,
    without_padding,
)
from fluidlite.operators.windows import PADDING_ALGORITHM, channels_to_end, data_format
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Execution, Lowering

Ints = tuple[int, ...]
Spans = tuple[WindowAxis, ...]
_LAYOUT = {2: "[images, channels, height, width]", 3: "[images, channels, depth, height, width]"}


def _window_attrs(spatial: int) -> tuple[Attr, ...]:
    return (
        Attr("ksize", "ints", doc="size of a window; with adaptive, the spatial dims of Out"),
        Attr("global_pooling", "bool", False, doc="a single window over all of X; ksize and paddings are ignored"),
        Attr("strides", "ints", (1,) * spatial, doc="distance between two windows"),
        Attr("paddings", "ints", (0,) * spatial, doc="a number, or (before, after), for each spatial dim"),
    )


_ADAPTIVE = Attr("adaptive", "bool", False, doc="ksize is the number of windows, which divide X as evenly as possible")

# Geometry -----------------------------------------------------------------------------------------------------------


def _spans(
    x: e.Tensor,
    spatial: int,
    ksize: Ints,
    global_pooling: bool,
    strides: Ints,
    paddings: Ints,
    adaptive: bool,
    ceil_mode: bool = False,
    data_format: str = "NCHW",
    padding_algorithm: str = "EXPLICIT",
    **_: Any,
) -> Spans:
    """The windows along each spatial dim of X."""
    if x.rank != spatial + 2:
        e.fail("X", f"{_LAYOUT[spatial]} (the order is data_format's)")
    first = 1 if data_format in ("NHWC", "NDHWC") else 2
    axes, single, zero = range(first, first + spatial), e.number(1), e.number(0)
    if global_pooling or adaptive:
        for axis in axes:
            e.need(x.dims[axis] >= 1, "X", "spatial dims of 1 or more")
    if global_pooling:
        return tuple(WindowAxis(axis, x.dims[axis], single, x.dims[axis], 1, zero, zero) for axis in axes)
    kernel = e.per_dim("ksize", ksize, spatial)
    if adaptive:
        sizes = [(x.dims[axis], e.number(outs)) for axis, outs in zip(axes, kernel, strict=True)]
        return tuple(
            WindowAxis(axis, *pair, max_adaptive_taps(*pair), 0, zero, zero)
            for axis, pair in zip(axes, sizes, strict=True)
        )
    pads = explicit_pads(paddings, spatial)
    if padding_algorithm == "VALID":
        pads = [(0, 0)] * spatial
    steps, spans = e.per_dim("strides", strides, spatial), []
    for axis, taps, step, explicit in zip(axes, kernel, steps, pads, strict=True):
        size, same = x.dims[axis], padding_algorithm == "SAME"
        before, after = same_pads(size, taps, step) if same else map(e.number, explicit)
        slack = size + before + after - taps
        outs = (slack + (step - 1 if ceil_mode else 0)) // step + 1
        e.need_attr(outs >= 1, "ksize", "windows that fit in X ({X}) with its paddings")
        if ceil_mode:
            after = e.highest((outs - 1) * step + taps - before - size, 0)
        reach = 0 if same else max(explicit[0], explicit[1] + (step - 1 if ceil_mode else 0))
        ragged = same or ceil_mode or explicit != (0, 0)
        spans.append(WindowAxis(axis, size, outs, e.number(taps), step, before, after, ragged, reach >= taps))
    return tuple(spans)


def _empty_windows(spans: Spans, rank: int) -> e.Tensor | None:
    """The mask of windows wholly in the padding; None if no window can be."""
    empty = None
    for span in spans:
        if span.may_be_empty:
            is_empty = span.widths(rank) == 0
            empty = is_empty if empty is None else e.logical_or(empty, is_empty)
    return empty


_MEMORY = "in loops, the windows along one dim after the other, the last one first: as much as X at most"
"""Workspace of a pooling."""

# Maxima -------------------------------------------------------------------------------------------------------------


def _levels(x: e.Tensor, spans: Spans) -> list[e.Tensor]:
    """X, its maxima along the last spatial dim, along the last two, and so on."""
    levels = [with_padding(e.wide(x), spans, -float("inf"))]
    for span in reversed(spans):
        levels.append(maximum_of(levels[-1], span))
    return levels


def _maxima(x: e.Tensor, spans: Spans) -> e.Tensor:
    out, empty = with_padding(e.wide(x), spans, -float("inf")), _empty_windows(spans, x.rank)
    for span in spans:  # the last dim, whose windows are not contiguous, when few elements remain
        out = maximum_of(out, span)
    return out if empty is None else e.where(empty, LOWEST[x.dtype], out)


def _has_maximum(out: e.Tensor, spans: Spans) -> e.Tensor:
    """The mask of windows with a maximum: not those of NaN, in which no element equals the maximum."""
    empty, is_number = _empty_windows(spans, out.rank), out == out
    return is_number if empty is None else e.logical_and(is_number, e.logical_not(empty))


def _maxima_grad(x: e.Tensor, out: e.Tensor, dout: e.Tensor, spans: Spans) -> e.Tensor:
    d = e.where(_has_maximum(out, spans), dout, 0)
    for span, level in zip(spans, _levels(x, spans)[-2::-1], strict=True):
        d = chosen_window_sums(d, first_maximum(level, span), span)
    return without_padding(d, spans)


def _means(x: e.Tensor, spans: Spans, exclusive: bool) -> e.Tensor:
    sums = with_padding(x, spans, 0.0)
    for span in spans:
        sums = total(sums, span)
    return _mean_of_sums(sums, spans, exclusive)


def _mean_of_sums(sums: e.Tensor, spans: Spans, exclusive: bool) -> e.Tensor:
    """Divide sums by the number of elements; without ``exclusive`` padding counts, too."""
    constant = e.product(s.taps for s in spans if not _needs_counts(s, exclusive))
    for span in spans:
        if _needs_counts(span, exclusive):
            sums = sums / e.cast(span.widths(sums.rank), "float64" if sums.dtype == "float64" else "float32")
    return sums if constant.key == "1" else sums / constant


def _needs_counts(span: WindowAxis, exclusive: bool) -> bool:
    """Whether windows along the axis differ in the number of elements that count."""
    return not span.stride or (span.may_be_partial and exclusive)


# pool2d and pool3d --------------------------------------------------------------------------------------------------


def _register_pool(spatial: int) -> None:
    attrs = (
        Attr("pooling_type", "str", choices=("max", "avg"), doc="the maximum or the mean of a window"),
        *_window_attrs(spatial),
        Attr("exclusive", "bool", True, doc="the mean counts elements of X, not of the padding"),
        _ADAPTIVE,
        Attr("ceil_mode", "bool", False, doc="a last window may be partly outside"),
        data_format(spatial),
        PADDING_ALGORITHM,
    )

    def pool(x: e.Tensor, *, pooling_type: str, exclusive: bool, **attrs: Any) -> e.Tensor:
        spans = _spans(x, spatial, **attrs)
        return _maxima(x, spans) if pooling_type == "max" else _means(x, spans, exclusive)

    def pool_grad(
        x: e.Tensor, out: e.Tensor, dout: e.Tensor, *, pooling_type: str, exclusive: bool, **attrs: Any
    ) -> e.Tensor:
        """Hand-written: the derived gradient goes to each of several equal maxima; this one to the first."""
        spans = _spans(x, spatial, **attrs)
        e.same_sizes(out, _output_dims(x, spans), "the dims of Out")
        e.same_sizes(dout, _output_dims(x, spans), "the dims of Out")
        if pooling_type == "max":
            return _maxima_grad(x, out, dout, spans)
        d = _mean_of_sums(e.wide(dout), spans, exclusive)
        for span in reversed(spans):
            d = window_sums(d, span)
        return without_padding(d, spans)

    op = operator(
        f"pool{spatial}d",
        Execution(memory=_MEMORY),
        Lowering(in_layout=channels_to_end("X", "Out")),
        attrs=attrs,
        dtypes={"X": ALL_FLOATS},
        doc="Out = the maximum, or the mean, of each window of X; paddings are never the maximum",
        source="Fluid pool_op.cc",
    )(pool)
    gradient(
        op,
        Lowering(in_layout=channels_to_end("X", "Out", "Out@GRAD", "X@GRAD")),
        doc="X@GRAD = the sum, over windows, of Out@GRAD at their first maximum, or divided among all of them",
    )(pool_grad)


def _output_dims(x: e.Tensor, spans: Spans) -> Sequence[e.Number]:
    dims = list(x.dims)
    for span in spans:
        dims[span.axis] = span.outs
    return dims


_register_pool(2)
_register_pool(3)

# max_pool2d_with_index and max_pool3d_with_index --------------------------------------------------------------------


def _register_indexed(spatial: int) -> None:
    attrs = (*_window_attrs(spatial), _ADAPTIVE, Attr("pooling_type", "str", "max", doc="of no effect"))

    def pool_with_index(x: e.Tensor, **attrs: Any) -> tuple[e.Tensor, e.Tensor]:
        spans = _spans(x, spatial, **attrs)
        levels, places, weight = _levels(x, spans), None, e.number(1)
        for span, level in zip(reversed(spans), levels, strict=False):
            index = first_maximum(level, span)
            positions = (e.squeeze(index, span.axis + 1) + e.cast(span.begins(x.rank), "int32")) * weight
            if places is not None:
                positions = positions + e.squeeze(
                    e.pick(windows(places, span), index, span.axis + 1, "clamp"), span.axis + 1
                )
            places, weight = positions, weight * span.size
        out = _maxima(x, spans)
        return out, e.where(_has_maximum(out, spans), places, -1)

    def pool_with_index_grad(x: e.Tensor, mask: e.Tensor, dout: e.Tensor, **attrs: Any) -> e.Tensor:
        """Hand-written: Mask has the indices, so that X is not read."""
        spans = _spans(x, spatial, **attrs)
        e.same_sizes(mask, _output_dims(x, spans), "the dims of Out")
        e.same_sizes(dout, _output_dims(x, spans), "the dims of Out")
        planes = [*x.dims[:2], e.number(-1)]
        size = e.product(x.dims[2:])
        return e.reshape(e.put(e.reshape(dout, planes), e.reshape(mask, planes), 2, size), x.dims)

    op = operator(
        f"max_pool{spatial}d_with_index",
        Execution(memory=f"{_MEMORY}, and indices"),
        outputs=("Out", "Mask"),
        attrs=attrs,
        dtypes={"X": ALL_FLOATS},
        doc="Out = the maximum of each window of X; Mask = the index of its first element in the plane",
        source="Fluid pool_with_index_op.cc",
    )(pool_with_index)
    gradient(
        op,
        metadata=("X",),
        dtypes={"Mask": ("int32",)},
        doc="X@GRAD = the sum, over windows, of Out@GRAD at the place that Mask names; half types add up in a float32 "
        "copy",
    )(pool_with_index_grad)


_register_indexed(2)
_register_indexed(3)
