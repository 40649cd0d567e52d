"""Geometry of pooling for the kernels of all libraries: windows along each spatial dim."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fluidlite.geometry.windows import channels_last, split_dims, windows_of

if TYPE_CHECKING:
    from fluidlite.program.op_call import Call


class PoolAxis(NamedTuple):
    """Windows along one spatial dim.

    Attributes
    ----------
    size, outs : int
        Elements of X, and of Out: the number of windows.
    kernel, stride, before : int
        Size of a window, distance between two windows, and padding before X.
    adaptive : bool
        Windows divide X as evenly as possible, and touch or overlap by one; kernel, stride and before are unused.
    """

    size: int
    outs: int
    kernel: int
    stride: int
    before: int
    adaptive: bool

    @property
    def regular(self) -> PoolAxis:
        """The same windows without ``adaptive`` if they divide X exactly; else unchanged."""
        if not self.adaptive or self.size % self.outs:
            return self
        step = self.size // self.outs
        return PoolAxis(self.size, self.outs, step, step, 0, False)


def pool_axes(call: Call) -> tuple[PoolAxis, ...]:
    """Return the windows along each spatial dim of X, for a call of ``pool2d``, ``pool3d`` or a gradient of one.

    Dims must be known.
    """
    sizes, kernel = split_dims(call.dims("X"), channels_last(call))[2], call.attr("ksize")
    if call.attr("global_pooling"):
        return tuple(PoolAxis(n, 1, n, 1, 0, False) for n in sizes)
    if call.attr("adaptive"):
        return tuple(PoolAxis(n, count, 0, 0, 0, True) for n, count in zip(sizes, kernel, strict=True))
    windows, ceil = windows_of(call, sizes, kernel), call.attr("ceil_mode")
    axes = []
    for n, k, step, (before, after) in zip(sizes, kernel, windows.strides, windows.pads, strict=True):
        count = (n + before + after - k + (step - 1 if ceil else 0)) // step + 1
        axes.append(PoolAxis(n, count, k, step, before, False))
    return tuple(axes)


def pool_planes(call: Call) -> tuple[int, int]:
    """Return (outer, inner): the elements of the dims before and after the spatial dims of X."""
    last = channels_last(call)
    images, channels, _ = split_dims(call.dims("X"), last)
    return (images, channels) if last else (images * channels, 1)
