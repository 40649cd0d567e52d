"""The geometry of interpolation that kernels of several libraries share: weights along each axis."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fluidlite.base.bounded import Bounded

if TYPE_CHECKING:
    from fluidlite.framework.call import Call
    from fluidlite.framework.spec import Dims

SIZES = ("out_d", "out_h", "out_w")
METHODS = {3: ("linear",), 4: ("bilinear", "nearest", "bicubic"), 5: ("trilinear",)}
"""The methods for each rank of X."""


class Weights(NamedTuple):
    """A sparse matrix: element ``o`` of the result is the sum of ``weight[e] * source[index[e]]``,
    ``start[o] <= e < start[o + 1]``.

    ``source`` and ``target`` are the numbers of elements before and after. Within a row, indices ascend.
    """

    source: int
    target: int
    start: Any
    index: Any
    weight: Any


class Resample(NamedTuple):
    """A tensor seen as [outer, axes..., inner] of which each axis is resampled.

    Attributes
    ----------
    outer, inner : int
    axes : tuple of Weights
    exact : bool
        Whether each element of the result is one of the source (nearest, forward).
    """

    outer: int
    inner: int
    axes: tuple[Weights, ...]
    exact: bool

    @property
    def source(self) -> Dims:
        """Dims before."""
        return (self.outer, *(axis.source for axis in self.axes), self.inner)

    @property
    def target(self) -> Dims:
        """Dims after."""
        return (self.outer, *(axis.target for axis in self.axes), self.inner)


def _spatial(call: Call, slot: str) -> tuple[Dims, Dims]:
    """The spatial dims of a slot, and the others."""
    dims = call.dims(slot)
    return (dims[2:], dims[:2]) if call.attr("data_layout") != "NHWC" else (dims[1:-1], (dims[0], dims[-1]))


def resample_of(call: Call) -> Resample:
    """Return what bilinear_interp, nearest_interp and the like do, or what their gradients do."""
    backward, method = call.op.type.endswith("_grad"), call.attr("interp_method")
    (space, outside), (sizes, _) = _spatial(call, "X"), _spatial(call, "Out@GRAD" if backward else "Out")
    corners, centres = call.attr("align_corners"), call.attr("align_mode") == 0
    axes = tuple(_weights(method, n, m, corners, centres) for n, m in zip(space, sizes, strict=True))
    outer, inner = (prod(outside), 1) if call.attr("data_layout") != "NHWC" else outside
    if backward:
        return Resample(outer, inner, tuple(map(_transposed, axes)), False)
    return Resample(outer, inner, axes, method == "nearest")


_lines: Bounded[Weights] = Bounded(256, "lines of resampling")


def _weights(method: str, n: int, m: int, corners: bool, centres: bool) -> Weights:
    """The elements of a line of ``n`` that each of ``m`` new ones is made of."""
    key = (method, n, m, corners, centres)
    return _lines.get(key, lambda: _line(*key))


def _line(method: str, n: int, m: int, corners: bool, centres: bool) -> Weights:
    o = np.arange(m, dtype=np.float64)
    ratio = ((n - 1) / (m - 1) if corners else n / m) if m > 1 else 0.0
    if method == "nearest":  # in float32, as Fluid does: which element is taken depends on the rounding
        where = (np.float32(ratio) * o.astype(np.float32)).astype(np.float64)
        index = np.floor(where + 0.5 if corners else where)[:, None]
        weight = np.ones((m, 1))
    elif method == "bicubic":
        where = ratio * o if corners else ratio * (o + 0.5) - 0.5
        first = np.floor(where)
        index, weight = first[:, None] + np.arange(-1, 3), _cubic((where - first)[:, None])
    else:
        where = np.maximum(ratio * (o + 0.5) - 0.5, 0) if centres and not corners else ratio * o
        first = np.minimum(np.floor(where), n - 1)
        index = np.stack([first, np.minimum(first + 1, n - 1)], 1)
        weight = np.stack([1 - (where - first), where - first], 1)
    return _sparse(n, m, np.clip(index, 0, n - 1).astype(np.int64), weight)


def _cubic(t: Any) -> Any:
    """Weights of four neighbours at a distance t after the second: Keys' convolution with a = -0.75."""
    a = -0.75

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return np.concatenate([far(t + 1), near(t), near(1 - t), far(2 - t)], 1)


def _sparse(n: int, m: int, index: Any, weight: Any) -> Weights:
    """Add up the weights that a row has for one element, and drop those that are 0."""
    rows = np.repeat(np.arange(m), index.shape[1])
    keys, place = np.unique(rows * n + index.reshape(-1), return_inverse=True)
    total = np.bincount(place, weight.reshape(-1), len(keys))
    keys, total = keys[total != 0], total[total != 0]
    start = np.searchsorted(keys, np.arange(m + 1) * n)
    return Weights(n, m, start.astype(np.int64), keys % n, total)


def _transposed(weights: Weights) -> Weights:
    n, m, start, index, weight = weights
    rows = np.repeat(np.arange(m), np.diff(start))
    order = np.argsort(index, kind="stable")
    begin = np.searchsorted(index[order], np.arange(n + 1))
    return Weights(m, n, begin.astype(np.int64), rows[order], weight[order])
