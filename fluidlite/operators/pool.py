"""Pooling: pool2d, pool3d, and the maxima that come with their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.math.spans import (
    LOWEST,
    Span,
    chosen_window_sums,
    explicit_pads,
    first_maximum,
    maximum_of,
    most_shared,
    padded,
    same_pads,
    total,
    unpadded,
    window_sums,
    windows,
)
from fluidlite.operators.windows import PADDING_ALGORITHM, channels_to_end, data_format
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Execution, Lowering

Ints = tuple[int, ...]
Spans = tuple[Span, ...]
_LAYOUT = {2: "[images, channels, height, width]", 3: "[images, channels, depth, height, width]"}


def _window_attrs(spatial: int) -> tuple[Attr, ...]:
    return (
        Attr("ksize", "ints", doc="size of a window; with adaptive, the spatial dims of Out"),
        Attr("global_pooling", "bool", False, doc="one window: all of X, whatever ksize and paddings say"),
        Attr("strides", "ints", (1,) * spatial, doc="distance between two windows"),
        Attr("paddings", "ints", (0,) * spatial, doc="a number, or (before, after), for each spatial dim"),
    )


_ADAPTIVE = Attr("adaptive", "bool", False, doc="ksize windows that divide X as evenly as they can")

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
    axes, one, none = range(first, first + spatial), e.number(1), e.number(0)
    if global_pooling or adaptive:
        for axis in axes:
            e.need(x.dims[axis] >= 1, "X", "spatial dims of 1 or more")
    if global_pooling:
        return tuple(Span(axis, x.dims[axis], one, x.dims[axis], 1, none, none) for axis in axes)
    kernel = e.per_dim("ksize", ksize, spatial)
    if adaptive:
        return tuple(
            Span(axis, x.dims[axis], e.number(outs), most_shared(x.dims[axis], e.number(outs)), 0, none, none)
            for axis, outs in zip(axes, kernel, strict=True)
        )
    pads = explicit_pads(paddings, spatial)
    if padding_algorithm == "VALID":
        pads = [(0, 0)] * spatial
    steps, found = e.per_dim("strides", strides, spatial), []
    for axis, taps, step, explicit in zip(axes, kernel, steps, pads, strict=True):
        size, same = x.dims[axis], padding_algorithm == "SAME"
        before, after = same_pads(size, taps, step) if same else map(e.number, explicit)
        room = size + before + after - taps
        outs = (room + (step - 1 if ceil_mode else 0)) // step + 1
        e.need_attr(outs >= 1, "ksize", "windows that fit in X ({X}) with its paddings")
        if ceil_mode:
            after = e.highest((outs - 1) * step + taps - before - size, 0)
        reach = 0 if same else max(explicit[0], explicit[1] + (step - 1 if ceil_mode else 0))
        ragged = same or ceil_mode or explicit != (0, 0)
        found.append(Span(axis, size, outs, e.number(taps), step, before, after, ragged, reach >= taps))
    return tuple(found)


def _void(spans: Spans, rank: int) -> e.Tensor | None:
    """Which windows lie wholly in the padding; None where none can."""
    found = None
    for span in spans:
        if span.void:
            here = span.widths(rank) == 0
            found = here if found is None else e.logical_or(found, here)
    return found


_LINES = "in loops, the windows along one dim after the other, the last one first: as much as X at most"
"""What they allocate."""

# Maxima -------------------------------------------------------------------------------------------------------------


def _levels(x: e.Tensor, spans: Spans) -> list[e.Tensor]:
    """X, and the maxima along its last spatial dim, along the last two, and so on."""
    levels = [padded(e.wide(x), spans, -float("inf"))]
    for span in reversed(spans):
        levels.append(maximum_of(levels[-1], span))
    return levels


def _maxima(x: e.Tensor, spans: Spans) -> e.Tensor:
    out, void = padded(e.wide(x), spans, -float("inf")), _void(spans, x.rank)
    for span in spans:  # the last one, whose windows do not lie side by side, when little is left
        out = maximum_of(out, span)
    return out if void is None else e.where(void, LOWEST[x.dtype], out)


def _some(out: e.Tensor, spans: Spans) -> e.Tensor:
    """Which windows have a maximum: nothing of a window of NaN equals its maximum."""
    void, number = _void(spans, out.rank), out == out
    return number if void is None else e.logical_and(number, e.logical_not(void))


def _maxima_grad(x: e.Tensor, out: e.Tensor, dout: e.Tensor, spans: Spans) -> e.Tensor:
    d = e.where(_some(out, spans), dout, 0)
    for span, level in zip(spans, _levels(x, spans)[-2::-1], strict=True):
        d = chosen_window_sums(d, first_maximum(level, span), span)
    return unpadded(d, spans)


def _means(x: e.Tensor, spans: Spans, exclusive: bool) -> e.Tensor:
    sums = padded(x, spans, 0.0)
    for span in spans:
        sums = total(sums, span)
    return _divided(sums, spans, exclusive)


def _divided(sums: e.Tensor, spans: Spans, exclusive: bool) -> e.Tensor:
    """Sums over the number of elements; not ``exclusive``, those of the padding too."""
    fixed = e.product(s.taps for s in spans if not _counted(s, exclusive))
    for span in spans:
        if _counted(span, exclusive):
            sums = sums / e.cast(span.widths(sums.rank), "float64" if sums.dtype == "float64" else "float32")
    return sums if fixed.key == "1" else sums / fixed


def _counted(span: Span, exclusive: bool) -> bool:
    """Whether windows differ in how many elements count."""
    return not span.stride or (span.ragged and exclusive)


# pool2d and pool3d --------------------------------------------------------------------------------------------------


def _register_pool(spatial: int) -> None:
    attrs = (
        Attr("pooling_type", "str", choices=("max", "avg"), doc="which: the maximum or the mean of a window"),
        *_window_attrs(spatial),
        Attr("exclusive", "bool", True, doc="the mean counts elements of X, not of the padding"),
        _ADAPTIVE,
        Attr("ceil_mode", "bool", False, doc="a last window may be partly outside"),
        data_format(spatial),
        PADDING_ALGORITHM,
    )

    def pooled(x: e.Tensor, *, pooling_type: str, exclusive: bool, **attrs: Any) -> e.Tensor:
        spans = _spans(x, spatial, **attrs)
        return _maxima(x, spans) if pooling_type == "max" else _means(x, spans, exclusive)

    def pooled_grad(
        x: e.Tensor, out: e.Tensor, dout: e.Tensor, *, pooling_type: str, exclusive: bool, **attrs: Any
    ) -> e.Tensor:
        """Written: the derived one would give every one of equal maxima the gradient."""
        spans = _spans(x, spatial, **attrs)
        e.same_sizes(out, _dims(x, spans), "the dims of Out")
        e.same_sizes(dout, _dims(x, spans), "the dims of Out")
        if pooling_type == "max":
            return _maxima_grad(x, out, dout, spans)
        d = _divided(e.wide(dout), spans, exclusive)
        for span in reversed(spans):
            d = window_sums(d, span)
        return unpadded(d, spans)

    made = operator(
        f"pool{spatial}d",
        Execution(memory=_LINES),
        Lowering(in_layout=channels_to_end("X", "Out")),
        attrs=attrs,
        dtypes={"X": ALL_FLOATS},
        doc="Out = the maximum, or the mean, of each window of X; paddings are never the maximum",
        source="Fluid pool_op.cc",
    )(pooled)
    gradient(
        made,
        Lowering(in_layout=channels_to_end("X", "Out", "Out@GRAD", "X@GRAD")),
        doc="X@GRAD = the sum, over windows, of Out@GRAD at their first maximum, or divided among all of them",
    )(pooled_grad)


def _dims(x: e.Tensor, spans: Spans) -> Sequence[e.Number]:
    dims = list(x.dims)
    for span in spans:
        dims[span.axis] = span.outs
    return dims


_register_pool(2)
_register_pool(3)

# max_pool2d_with_index and max_pool3d_with_index --------------------------------------------------------------------


def _register_indexed(spatial: int) -> None:
    attrs = (*_window_attrs(spatial), _ADAPTIVE, Attr("pooling_type", "str", "max", doc="of no effect"))

    def pooled(x: e.Tensor, **attrs: Any) -> tuple[e.Tensor, e.Tensor]:
        spans = _spans(x, spatial, **attrs)
        levels, places, weight = _levels(x, spans), None, e.number(1)
        for span, level in zip(reversed(spans), levels, strict=False):
            found = first_maximum(level, span)
            here = (e.squeeze(found, span.axis + 1) + e.cast(span.begins(x.rank), "int32")) * weight
            if places is not None:
                here = here + e.squeeze(e.pick(windows(places, span), found, span.axis + 1, "clamp"), span.axis + 1)
            places, weight = here, weight * span.size
        out = _maxima(x, spans)
        return out, e.where(_some(out, spans), places, -1)

    def pooled_grad(x: e.Tensor, mask: e.Tensor, dout: e.Tensor, **attrs: Any) -> e.Tensor:
        """Written: the places are there."""
        spans = _spans(x, spatial, **attrs)
        e.same_sizes(mask, _dims(x, spans), "the dims of Out")
        e.same_sizes(dout, _dims(x, spans), "the dims of Out")
        planes = [*x.dims[:2], e.number(-1)]
        size = e.product(x.dims[2:])
        return e.reshape(e.put(e.reshape(dout, planes), e.reshape(mask, planes), 2, size), x.dims)

    made = operator(
        f"max_pool{spatial}d_with_index",
        Execution(memory=f"{_LINES}, and where they are"),
        outputs=("Out", "Mask"),
        attrs=attrs,
        dtypes={"X": ALL_FLOATS},
        doc="Out = the maximum of each window of X; Mask = where in its plane the first such element is",
        source="Fluid pool_with_index_op.cc",
    )(pooled)
    gradient(
        made,
        metadata=("X",),
        dtypes={"Mask": ("int32",)},
        doc="X@GRAD = the sum, over windows, of Out@GRAD at the place that Mask names; half types add up in a float32 "
        "copy",
    )(pooled_grad)


_register_indexed(2)
_register_indexed(3)
