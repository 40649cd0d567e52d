"""Sliding windows along an axis and their adjoint: for pooling, and for convolution as a contraction."""

from __future__ import annotations

from fluidlite.expr.number import Number, Numeric, number
from fluidlite.expr.tensor import Tensor, need, refuse, slot_of, tensor, wide
from fluidlite.expr.views import normal_axis


def window_reach(taps: Numeric, dilation: int = 1) -> Number:
    """The number of elements that a dilated window spans."""
    return (number(taps) - 1) * dilation + 1


def window_count(size: Numeric, taps: Numeric, stride: int = 1, dilation: int = 1) -> Number:
    """The number of windows that fit into ``size`` elements; less than 1 if none fits."""
    return (number(size) - window_reach(taps, dilation)) // stride + 1


def window(x: Tensor, axis: int, taps: Numeric, stride: int = 1, dilation: int = 1) -> Tensor:
    """Sliding windows (im2col): two axes, of windows and of their ``taps`` elements, replace the axis.

    Element ``[o, k]`` is ``x[o * stride + k * dilation]``. At least one window must fit.
    """
    at = normal_axis(axis, x.rank)
    if min(stride, dilation) < 1:
        refuse(f"windows with stride {stride}, dilation {dilation}; expected 1 or more each")
    size, reach = number(taps), window_reach(taps, dilation)
    need(size >= 1, slot_of(x), "windows of 1 element or more")
    need(reach <= x.dims[at], slot_of(x), f"an axis in which a window of {reach} fits")
    dims = (*x.dims[:at], window_count(x.dims[at], size, stride, dilation), size, *x.dims[at + 1 :])
    return tensor("window", (x,), (at, stride, dilation), dims, x.dtype)


def unwindow(parts: Tensor, axis: int, size: Numeric, stride: int = 1, dilation: int = 1) -> Tensor:
    """Overlap-add of windows (col2im), the adjoint of ``window``: ``size`` elements, each a sum of window elements.

    ``parts`` has the windows along ``axis``, and their elements along the next axis.
    """
    at, source = normal_axis(axis, parts.rank - 1), wide(parts)
    dims = (*parts.dims[:at], number(size), *parts.dims[at + 2 :])
    return tensor("unwindow", (source,), (at, stride, dilation), dims, source.dtype)
