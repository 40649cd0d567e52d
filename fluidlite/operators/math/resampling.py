"""The geometry of interpolation, which inference and every library's kernels share: sizes, and weights by axis."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from fluidlite.framework.call import Call
    from fluidlite.framework.spec import Dims

SIZES = ("out_d", "out_h", "out_w")
METHODS = {3: ("linear",), 4: ("bilinear", "nearest", "bicubic"), 5: ("trilinear",)}
"""The methods for each rank of X."""


_LARGE = 2**31
"""No image has so many rows or columns."""


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


def channels_first(call: Call) -> bool:
    """Whether the channels come before the spatial dims."""
    return bool(call.attr("data_layout") != "NHWC")


def spatial_dims(call: Call) -> Dims:
    """Return the spatial dims of X."""
    dims = call.dims("X")
    return tuple(dims[2:] if channels_first(call) else dims[1:-1])


def resized(call: Call) -> Dims:
    """Return the spatial dims of Out, -1 where they are not known; what the definition forbids is an error."""
    space = spatial_dims(call)
    names = SIZES[-len(space) :]
    sizes: list[int] | None = [call.attr(name) for name in names]
    if call.has("SizeTensor"):
        for spec in call.specs("SizeTensor"):
            call.need(spec.size in (1, -1), "SizeTensor", "tensors of one number each")
        values = [call.value("SizeTensor", i) for i in range(call.count("SizeTensor"))]
        call.need(len(values) == len(space), "SizeTensor", f"{len(space)} tensors, a size each")
        sizes = None if None in values else [int(value[0]) for value in values if value is not None]
    else:
        scale: Any = call.attr("scale")
        if call.has("Scale"):
            found = call.value("Scale")
            call.need(call.spec("Scale").size in (1, -1), "Scale", "one number")
            scale = None if found is None else found[0]
        if scale is None:
            sizes = None
        elif scale > 0:
            if max(*space, 1) * scale >= _LARGE:
                expected = "a number that makes images of fewer rows and columns"
                if call.has("Scale"):
                    call.fail("Scale", expected, got=scale)
                call.fail_attr("scale", expected)
            sizes = [-1 if n < 0 else int(np.float32(n) * np.float32(scale)) for n in space]
        if call.has("OutSize"):
            given = call.value("OutSize")
            call.need(call.dims("OutSize") in ((len(space),), (-1,)), "OutSize", f"[{len(space)}], a size each")
            sizes = None if given is None else [int(v) for v in given]
    if sizes is None:
        return (-1,) * len(space)
    for name, size, n in zip(names, sizes, space, strict=True):
        if size < 1 and n >= 0:
            call.fail_attr(name, f"1 or more, or a scale or a tensor that gives it; dim {size} would come out")
    return tuple(sizes)


def resample_of(call: Call) -> Resample:
    """Return what bilinear_interp, nearest_interp and the like do, or what their gradients do."""
    space, sizes, method = spatial_dims(call), resized(call), call.attr("interp_method")
    corners, centres = call.attr("align_corners"), call.attr("align_mode") == 0
    axes = tuple(_weights(method, n, m, corners, centres) for n, m in zip(space, sizes, strict=True))
    dims = call.dims("X")
    outer, inner = (prod(dims[:2]), 1) if channels_first(call) else (dims[0], dims[-1])
    if call.op.type.endswith("_grad"):
        return Resample(outer, inner, tuple(map(_transposed, axes)), False)
    return Resample(outer, inner, axes, method == "nearest")


@lru_cache(256)
def _weights(method: str, n: int, m: int, corners: bool, centres: bool) -> Weights:
    """The elements of a line of ``n`` that each of ``m`` new ones is made of."""
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
