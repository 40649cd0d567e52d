"""unpool, the inverse of max pooling with indices, and spp, spatial pyramid pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.math.pool_windows import LOWEST
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Execution

Ints = tuple[int, ...]

# unpool ------------------------------------------------------------------------------------------------------------


def _unpooled_dims(x: e.Tensor, indices: e.Tensor, ksize: Ints, strides: Ints, paddings: Ints) -> Sequence[e.Number]:
    """The dims of Out."""
    if x.rank != 4:
        e.fail("X", "[images, channels, height, width]")
    e.same_sizes(indices, x.dims, "the dims of X")
    kernel, steps, pads = (
        e.per_dim(name, values, 2, minimum)
        for name, values, minimum in (("ksize", ksize, 1), ("strides", strides, 1), ("paddings", paddings, 0))
    )
    space = [(n - 1) * step - 2 * pad + k for n, k, step, pad in zip(x.dims[2:], kernel, steps, pads, strict=True)]
    for d in space:
        e.need_attr(d >= 1, "paddings", "paddings that leave something of Out, which would be [{0}, {1}]", *space)
    return (*x.dims[:2], *space)


def _planes(x: e.Tensor) -> e.Tensor:
    """Flatten each plane."""
    return e.reshape(x, (*x.dims[:2], e.product(x.dims[2:])))


@operator(
    "unpool",
    dtypes={"X": ALL_FLOATS, "Indices": INTS},
    source="Fluid unpool_op.cc",
    attrs=(
        Attr("ksize", "ints", doc="size of the pooling's windows"),
        Attr("strides", "ints", (1, 1), doc="distance between two of them"),
        Attr("paddings", "ints", (0, 0), doc="padding of the pooling, in height and in width"),
        Attr("unpooling_type", "str", choices=("max",), doc="the pooling of which this is the inverse"),
    ),
    doc="Out = 0; Out[n, c] at place Indices[n, c, h, w] of its plane = X[n, c, h, w], the last one if several",
)
def unpool(x: e.Tensor, indices: e.Tensor, *, ksize: Ints, strides: Ints, paddings: Ints) -> e.Tensor:
    """Scatter to the flattened planes."""
    dims = _unpooled_dims(x, indices, ksize, strides, paddings)
    planes, size, count = dims[0] * dims[1], e.product(dims[2:]), e.product(x.dims)
    begins = e.reshape(e.iota((planes,), 0) * size, (*dims[:2], 1))
    places = e.checked(_planes(indices), size) + begins
    zeros = e.cast(e.full((planes * size,), 0, "float32"), x.dtype)
    return e.reshape(e.set_at(zeros, e.reshape(x, (count,)), e.reshape(places, (count,))), dims)


@gradient(
    unpool,
    metadata=("X",),
    dtypes={"Indices": INTS},
    doc="X@GRAD[n, c, h, w] = Out@GRAD[n, c] at place Indices[n, c, h, w] of its plane",
)
def unpool_grad(
    x: e.Tensor, indices: e.Tensor, dout: e.Tensor, *, ksize: Ints, strides: Ints, paddings: Ints
) -> e.Tensor:
    """Hand-written: as in Fluid, elements that were overwritten have a gradient, too."""
    e.same_sizes(dout, _unpooled_dims(x, indices, ksize, strides, paddings), "the dims of Out")
    return e.reshape(e.pick(_planes(dout), _planes(indices), 2), x.dims)


# spp ---------------------------------------------------------------------------------------------------------------


class _Bins(NamedTuple):
    """``outs`` windows over an axis of ``size`` elements, padded so that each window has ``taps``."""

    outs: int
    size: e.Number
    taps: e.Number
    before: e.Number

    @property
    def after(self) -> e.Number:
        return self.taps * self.outs - self.size - self.before

    @property
    def widths(self) -> e.Tensor:
        """Number of elements in each window, without padding."""
        begin = e.iota((self.outs,), 0) * self.taps - self.before
        return e.maximum(e.minimum(begin + self.taps, self.size) - e.maximum(begin, 0), 0)


def _levels(x: e.Tensor, pyramid_height: int) -> Iterator[tuple[_Bins, _Bins]]:
    """The windows of height and of width of each level."""
    if x.rank != 4:
        e.fail("X", "[images, channels, height, width]")
    for n in x.dims[2:]:
        e.need(n >= 1, "X", "a height and a width of 1 or more")
    for level in range(pyramid_height):
        bins = 2**level
        taps = [(n + bins - 1) // bins for n in x.dims[2:]]
        down, across = (_Bins(bins, n, k, (k * bins - n + 1) // 2) for n, k in zip(x.dims[2:], taps, strict=True))
        yield down, across


def _windows(x: e.Tensor, down: _Bins, across: _Bins, filler: float) -> e.Tensor:
    """The elements of windows, [images, channels, rows of windows, height, columns of windows, width]."""
    padded = e.pad(x, (0, 0, down.before, across.before), (0, 0, down.after, across.after), filler)
    return e.reshape(padded, (*x.dims[:2], down.outs, down.taps, across.outs, across.taps))


def _counts(x: e.Tensor, down: _Bins, across: _Bins) -> e.Tensor:
    """Number of elements of X in each window, [rows of windows, columns of windows]."""
    counts = e.unsqueeze(down.widths, 1) * across.widths
    return e.cast(counts, "float64" if x.dtype == "float64" else "float32")


@operator(
    "spp",
    dtypes={"X": ALL_FLOATS},
    source="Fluid spp_op.cc",
    attrs=(
        Attr("pyramid_height", "int", minimum=1, maximum=12, doc="how many levels; level p has 2^p by 2^p windows"),
        Attr("pooling_type", "str", choices=("max", "avg"), doc="the maximum or the mean of a window"),
    ),
    doc="Out = the poolings of X to 1, 4, 16, ... windows, side by side",
)
def spp(x: e.Tensor, *, pyramid_height: int, pooling_type: str) -> e.Tensor:
    """Pool each level; windows do not overlap, and padding is ignored."""
    parts = []
    for down, across in _levels(x, pyramid_height):
        counts = _counts(x, down, across)
        if pooling_type == "max":
            pooled = e.reduce_max(_windows(e.wide(x), down, across, -float("inf")), (3, 5))
            pooled = e.where(counts == 0, LOWEST[x.dtype], pooled)
        else:
            pooled = e.reduce_sum(_windows(x, down, across, 0.0), (3, 5)) / counts
        parts.append(e.reshape(pooled, (x.dims[0], x.dims[1] * (down.outs * across.outs))))
    return e.concat(parts, 1)


@gradient(
    spp,
    Execution(memory="where arrays compute, the gradients of a level, and their sum: twice X"),
    doc="X@GRAD = the sum of the gradients of the poolings",
)
def spp_grad(x: e.Tensor, out: e.Tensor, dout: e.Tensor, *, pyramid_height: int, pooling_type: str) -> e.Tensor:
    """Hand-written: the derived gradient goes to each of several equal maxima; this one to the first."""
    levels = list(_levels(x, pyramid_height))
    columns = x.dims[1] * sum(down.outs**2 for down, _ in levels)
    for tensor in (out, dout):
        e.same_sizes(tensor, (x.dims[0], columns), "the dims of Out")
    at, total = e.number(0), None
    for down, across in levels:
        width = x.dims[1] * (down.outs * across.outs)
        dims: tuple[e.Number, ...] = (*x.dims[:2], e.number(down.outs), e.number(1), e.number(across.outs), e.number(1))
        best, d = (e.reshape(e.slice_axis(tensor, 1, at, width), dims) for tensor in (out, e.wide(dout)))
        if pooling_type == "max":
            d = _at_first_maximum(_windows(e.wide(x), down, across, float("nan")), best, d)
        else:
            d = d / e.reshape(_counts(x, down, across), dims[2:])
            d = e.broadcast(d, (*dims[:3], down.taps, dims[4], across.taps))
        padded = e.reshape(d, (*x.dims[:2], down.outs * down.taps, across.outs * across.taps))
        part = e.slices(padded, (0, 0, down.before, across.before), x.dims)
        total = part if total is None else total + part
        at = at + width
    assert total is not None
    return total


def _at_first_maximum(windows: e.Tensor, best: e.Tensor, d: e.Tensor) -> e.Tensor:
    """``d`` at the first maximum of each window, else 0; a window of NaN has no maximum."""
    down, across = windows.dims[3], windows.dims[5]
    at = e.reshape(e.iota((down,), 0) * across, (down, 1, 1)) + e.iota((across,), 0)
    first = e.reduce_min(e.where(windows == best, at, down * across), (3, 5), keep=True)
    return e.where(at == first, d, 0)
