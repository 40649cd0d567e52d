"""Window geometry of convolutions, and the transforms from images to columns of windows (im2col) and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fluidlite import expr as e
from fluidlite.operators.math.pool_windows import explicit_pads, same_pads


class ConvAxis(NamedTuple):
    """Windows along one spatial dim of an image that is padded ``before`` and ``after``.

    ``has_remainder``: the image may extend beyond the last window, by ``-after`` elements.
    """

    taps: e.Number
    stride: int
    dilation: int
    before: e.Number
    after: e.Number
    has_remainder: bool = False

    @property
    def reach(self) -> e.Number:
        """Extent of a window: elements from its first to its last tap."""
        return e.window_reach(self.taps, self.dilation)


class ConvWindows(NamedTuple):
    """Windows over images [N, C, ...] or, with ``channels_last``, [N, ..., C], with channels in groups."""

    axes: tuple[ConvAxis, ...]
    groups: int
    channels_last: bool

    @property
    def spatial(self) -> int:
        return len(self.axes)

    def split_dims(self, dims: Sequence[e.Number]) -> tuple[e.Number, e.Number, tuple[e.Number, ...]]:
        """Images, channels and spatial dims."""
        return (dims[0], dims[-1], tuple(dims[1:-1])) if self.channels_last else (dims[0], dims[1], tuple(dims[2:]))

    def join_dims(self, images: e.Number, channels: Sequence[Any], spatial: Sequence[Any]) -> tuple[Any, ...]:
        """The dims of a tensor of images, channel axes and spatial axes: the inverse of :meth:`split_dims`."""
        return (images, *spatial, *channels) if self.channels_last else (images, *channels, *spatial)

    def with_groups(self, x: e.Tensor) -> e.Tensor:
        """Split the channel axis into groups and channels of a group."""
        images, channels, spatial = self.split_dims(x.dims)
        return e.reshape(x, self.join_dims(images, (self.groups, channels // self.groups), spatial))

    def without_groups(self, x: e.Tensor) -> e.Tensor:
        """Merge the axes of groups and of their channels."""
        group, channels = (x.dims[-2:]) if self.channels_last else x.dims[1:3]
        spatial = x.dims[self.first_spatial : self.first_spatial + self.spatial]
        return e.reshape(x, self.join_dims(x.dims[0], (group * channels,), spatial))

    def subscripts(self) -> tuple[str, str, str]:
        """Subscripts of columns, of windows and of filters in contractions."""
        places, taps = "abd"[: self.spatial], "ijk"[: self.spatial]
        if self.channels_last:
            return f"n{places}{taps}gc", f"n{places}gm", f"{taps}cgm"
        return f"ngc{taps}{places}", f"ngm{places}", f"gmc{taps}"

    @property
    def first_spatial(self) -> int:
        """The first spatial axis of an image in groups."""
        return 1 if self.channels_last else 3

    def column_order(self) -> list[int]:
        """The permutation from windows [.., count, taps, count, taps, ..] to columns."""
        at, n = self.first_spatial, self.spatial
        counts, taps = [at + 2 * i for i in range(n)], [at + 2 * i + 1 for i in range(n)]
        rest = [0, *([] if self.channels_last else [1, 2])]
        trailing = [at + 2 * n, at + 2 * n + 1] if self.channels_last else []
        return [*rest, *((counts + taps) if self.channels_last else (taps + counts)), *trailing]

    def columns(self, x: e.Tensor) -> e.Tensor:
        """The columns of an image: the elements of its windows, zeros in the padding."""
        x = self.with_groups(x)
        low: list[e.Number | int] = [0] * x.rank
        high: list[e.Number | int] = [0] * x.rank
        for i, axis in enumerate(self.axes):
            low[self.first_spatial + i], high[self.first_spatial + i] = axis.before, axis.after
        x = e.pad(x, low, high)
        for i, axis in reversed(list(enumerate(self.axes))):
            x = e.window(x, self.first_spatial + i, axis.taps, axis.stride, axis.dilation)
        return e.transpose(x, self.column_order())

    def image(self, columns: e.Tensor, sizes: Sequence[e.Number]) -> e.Tensor:
        """Scatter-add columns to an image of these spatial dims."""
        column_order = self.column_order()
        x = e.transpose(columns, [column_order.index(axis) for axis in range(len(column_order))])
        for i, axis in reversed(list(enumerate(self.axes))):
            padded = axis.before + sizes[i] + axis.after
            x = e.unwindow(x, self.first_spatial + 2 * i, padded, axis.stride, axis.dilation)
        starts: list[e.Number | int] = [0] * x.rank
        ends: list[e.Number | int] = [0] * x.rank
        extents = list(x.dims)
        for k, (axis, size) in enumerate(zip(self.axes, sizes, strict=True), self.first_spatial):
            starts[k], extents[k], ends[k] = axis.before, size, -axis.after
        if any(axis.has_remainder for axis in self.axes):
            return e.pad(x, [-n for n in starts], ends)
        return e.slices(x, starts, extents)

    def by_groups(self, w: e.Tensor) -> e.Tensor:
        """Split the first axis of the filter into groups."""
        return e.reshape(w, (self.groups, w.dims[0] // self.groups, *w.dims[1:]))

    def weights(self, w: e.Tensor) -> e.Tensor:
        """The filter in the layout of the image: channels last if those of the image are."""
        w = self.by_groups(w)
        return e.transpose(w, (*range(3, w.rank), 2, 0, 1)) if self.channels_last else w

    def correlate(self, x: e.Tensor, w: e.Tensor) -> e.Tensor:
        """Correlate an image with the filter."""
        columns, windows, taps = self.subscripts()
        result = e.contract(self.columns(e.wide(x)), self.weights(e.wide(w)), f"{columns},{taps}->{windows}")
        return self.without_groups(result)

    def scatter(self, y: e.Tensor, w: e.Tensor, sizes: Sequence[e.Number]) -> e.Tensor:
        """Scatter windows through the filter to an image of these spatial dims: the adjoint of :meth:`correlate`.

        With strides of 1 that is a correlation with the flipped filter.
        """
        if all(axis.stride == 1 for axis in self.axes):
            flipped = self.by_groups(e.flip(e.wide(w), range(2, w.rank)))
            flipped = e.transpose(flipped, (0, 2, 1, *range(3, flipped.rank)))
            adjoint_axes = [
                axis._replace(before=axis.reach - 1 - axis.before, after=size - count + axis.before)
                for axis, size, count in zip(self.axes, sizes, self.split_dims(y.dims)[2], strict=True)
            ]
            adjoint = self._replace(axes=tuple(adjoint_axes))
            flat = e.reshape(flipped, (flipped.dims[0] * flipped.dims[1], *flipped.dims[2:]))
            return adjoint.correlate(y, flat)
        columns, windows, taps = self.subscripts()
        columns_grad = e.contract(self.with_groups(e.wide(y)), self.weights(e.wide(w)), f"{windows},{taps}->{columns}")
        return self.without_groups(self.image(columns_grad, sizes))

    def filter(self, x: e.Tensor, y: e.Tensor, w: e.Tensor) -> e.Tensor:
        """The gradient of the filter: windows of the image contracted with a tensor of the windows' dims."""
        columns, windows, taps = self.subscripts()
        result = e.contract(self.columns(e.wide(x)), self.with_groups(e.wide(y)), f"{columns},{windows}->{taps}")
        if self.channels_last:
            result = e.transpose(result, (result.rank - 2, result.rank - 1, result.rank - 3, *range(self.spatial)))
        return e.reshape(result, w.dims)


def conv_windows(
    x: e.Tensor,
    w: e.Tensor,
    spatial: int,
    strides: Sequence[int],
    paddings: Sequence[int],
    groups: int,
    dilations: Sequence[int],
    padding_algorithm: str,
    data_format: str,
    **_: Any,
) -> ConvWindows:
    """The windows of a call.

    Raises Refused for a wrong rank, different dtypes, a dim of 0, or a list of numbers of the wrong length.
    """
    channels_last = data_format in ("NHWC", "NDHWC")
    order = "[N, H, W, C]" if channels_last else "[N, C, H, W]"
    if spatial == 3:
        order = order.replace("H", "D, H")
    if x.rank != spatial + 2:
        e.fail("Input", f"rank {spatial + 2}: {order}")
    if w.rank != spatial + 2:
        e.fail("Filter", f"rank {spatial + 2}")
    e.same_dtype(w, x)
    for d in x.dims[1:]:
        e.need(d >= 1, "Input", "dims of 1 or more after the first")
    for d in w.dims:
        e.need(d >= 1, "Filter", "dims of 1 or more")
    steps, dilation_steps = e.per_dim("strides", strides, spatial), e.per_dim("dilations", dilations, spatial)
    explicit = explicit_pads(paddings, spatial)
    if padding_algorithm == "VALID":
        explicit = [(0, 0)] * spatial
    axes = []
    for i, (taps, step, dilation, pads) in enumerate(zip(w.dims[2:], steps, dilation_steps, explicit, strict=True)):
        if padding_algorithm == "SAME":
            size = x.dims[i + (1 if channels_last else 2)]
            axes.append(ConvAxis(taps, step, 1, *same_pads(size, taps, step)))
        else:
            axes.append(ConvAxis(taps, step, dilation, e.number(pads[0]), e.number(pads[1])))
    return ConvWindows(tuple(axes), groups, channels_last)
