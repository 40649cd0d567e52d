"""Normalising by mean and variance over any axes, with the functions of the Array-API standard.

A tensor is seen in dims of which some are reduced to one mean and variance; scale and bias have a shape that
broadcasts to them.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from fluidlite.plugin import Call


class View(NamedTuple):
    """How a tensor is seen: dims, the reduced axes, and the shape of scale and bias."""

    dims: tuple[int, ...]
    axes: tuple[int, ...]
    parameter: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Elements that one mean is taken of."""
        return prod(self.dims[axis] for axis in self.axes)

    @property
    def statistic(self) -> tuple[int, ...]:
        """The shape of mean and variance."""
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(self.dims))

    @property
    def columns(self) -> bool:
        """Whether it is a matrix whose columns are normalised."""
        return self.axes == (0,)

    @property
    def channels(self) -> tuple[int, ...]:
        """The axes along which scale and bias differ."""
        return tuple(axis for axis, size in enumerate(self.parameter) if size != 1)


def view_of(call: Call) -> View:
    """The view of X that a normalisation operator, or its gradient, takes."""
    dims, attrs = call.dims("X"), call.attrs
    if "begin_norm_axis" in attrs:
        begin = attrs["begin_norm_axis"]
        rows, length = prod(dims[:begin]), prod(dims[begin:])
        return View((rows, length), (1,), (1, length))
    last = attrs.get("data_layout") == "NHWC"
    batch, channels, inner = dims[0], dims[-1 if last else 1], prod(dims[1:-1] if last else dims[2:])
    if "groups" in attrs:
        groups = attrs["groups"]
        each = channels // groups
        if last:
            return View((batch, inner, groups, each), (1, 3), (1, 1, groups, each))
        return View((batch, groups, each, inner), (2, 3), (1, groups, each, 1))
    if "momentum" not in attrs:  # instance_norm
        return View((batch, channels, inner), (2,), (1, channels, 1))
    if last or inner == 1:
        return View((batch * inner, channels), (0,), (1, channels))
    return View((batch, channels, inner), (0, 2), (1, channels, 1))


def forward(xp: Any, x: Any, view: View, epsilon: float) -> tuple[Any, Any, Any]:
    """Return (x - mean) / sqrt(variance + epsilon), the mean and the variance."""
    mean = xp.mean(x, axis=view.axes, keepdims=True)
    centred = x - mean
    rest = xp.mean(centred, axis=view.axes, keepdims=True)  # what the first sum lost, if the mean is far from 0
    centred, mean = centred - rest, mean + rest
    variance = xp.mean(centred * centred, axis=view.axes, keepdims=True)
    return centred / xp.sqrt(variance + epsilon), mean, variance


def backward(
    xp: Any, x: Any, dy: Any, mean: Any, inverse: Any, scale: Any, view: View, fixed: bool
) -> tuple[Any, Any, Any]:
    """Return the gradients of x, scale and bias.

    Parameters
    ----------
    inverse : array
        1 / sqrt(variance + epsilon).
    scale : array or None
    fixed : bool
        Whether mean and variance do not depend on x.
    """
    normal = (x - mean) * inverse
    others = tuple(axis for axis in range(len(view.dims)) if axis not in view.channels)
    dscale, dbias = xp.sum(dy * normal, axis=others), xp.sum(dy, axis=others)
    given = dy if scale is None else dy * scale
    if fixed:
        return given * inverse, dscale, dbias
    first = xp.mean(given, axis=view.axes, keepdims=True)
    second = xp.mean(given * normal, axis=view.axes, keepdims=True)
    return (given - first - normal * second) * inverse, dscale, dbias
