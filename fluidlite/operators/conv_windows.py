"""Where the windows of a convolution lie, and how images become columns of windows, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fluidlite import expr as e
from fluidlite.operators.math.spans import explicit_pads, same_pads


class Axis(NamedTuple):
    """Windows along one spatial dim of an image that is padded ``before`` and ``after``.

    ``longer``: the image may end behind the last window, by as much as ``after`` is less than 0.
    """

    taps: e.Number
    stride: int
    dilation: int
    before: e.Number
    after: e.Number
    longer: bool = False

    @property
    def reach(self) -> e.Number:
        """Elements from the first to the last of a window."""
        return e.window_reach(self.taps, self.dilation)


class Geometry(NamedTuple):
    """Windows over images [N, C, ...] or, with ``last``, [N, ..., C], whose channels are in groups."""

    axes: tuple[Axis, ...]
    groups: int
    last: bool

    @property
    def spatial(self) -> int:
        return len(self.axes)

    def split(self, dims: Sequence[e.Number]) -> tuple[e.Number, e.Number, tuple[e.Number, ...]]:
        """Images, channels and spatial dims."""
        return (dims[0], dims[-1], tuple(dims[1:-1])) if self.last else (dims[0], dims[1], tuple(dims[2:]))

    def join(self, images: e.Number, channels: Sequence[Any], spatial: Sequence[Any]) -> tuple[Any, ...]:
        """Those as dims."""
        return (images, *spatial, *channels) if self.last else (images, *channels, *spatial)

    def grouped(self, x: e.Tensor) -> e.Tensor:
        """Channels as groups, and channels of a group."""
        images, channels, spatial = self.split(x.dims)
        return e.reshape(x, self.join(images, (self.groups, channels // self.groups), spatial))

    def ungrouped(self, x: e.Tensor) -> e.Tensor:
        """Groups of channels as one axis."""
        group, channels = (x.dims[-2:]) if self.last else x.dims[1:3]
        spatial = x.dims[self.first : self.first + self.spatial]
        return e.reshape(x, self.join(x.dims[0], (group * channels,), spatial))

    def letters(self) -> tuple[str, str, str]:
        """The axes of the elements of windows, of windows, and of a filter, for contractions."""
        places, taps = "abd"[: self.spatial], "ijk"[: self.spatial]
        columns = f"n{places}{taps}gc" if self.last else f"ngc{taps}{places}"
        return columns, f"n{places}gm" if self.last else f"ngm{places}", f"{taps}cgm" if self.last else f"gmc{taps}"

    @property
    def first(self) -> int:
        """The first spatial axis of an image in groups."""
        return 1 if self.last else 3

    def order(self) -> list[int]:
        """How windows lie whose elements stand beside each other, [.., count, taps, count, taps, ..], as columns."""
        at, n = self.first, self.spatial
        counts, taps = [at + 2 * i for i in range(n)], [at + 2 * i + 1 for i in range(n)]
        rest = [0, *([] if self.last else [1, 2])]
        behind = [at + 2 * n, at + 2 * n + 1] if self.last else []
        return [*rest, *((counts + taps) if self.last else (taps + counts)), *behind]

    def columns(self, x: e.Tensor) -> e.Tensor:
        """The elements of the windows of an image, zeros outside of it."""
        x = self.grouped(x)
        low: list[e.Number | int] = [0] * x.rank
        high: list[e.Number | int] = [0] * x.rank
        for i, axis in enumerate(self.axes):
            low[self.first + i], high[self.first + i] = axis.before, axis.after
        x = e.pad(x, low, high)
        for i, axis in reversed(list(enumerate(self.axes))):
            x = e.window(x, self.first + i, axis.taps, axis.stride, axis.dilation)
        return e.transpose(x, self.order())

    def image(self, columns: e.Tensor, sizes: Sequence[e.Number]) -> e.Tensor:
        """The image of these spatial dims to which elements of windows are added where they lie."""
        order = self.order()
        x = e.transpose(columns, [order.index(axis) for axis in range(len(order))])
        for i, axis in reversed(list(enumerate(self.axes))):
            padded = axis.before + sizes[i] + axis.after
            x = e.unwindow(x, self.first + 2 * i, padded, axis.stride, axis.dilation)
        starts: list[e.Number | int] = [0] * x.rank
        ends: list[e.Number | int] = [0] * x.rank
        kept = list(x.dims)
        for i, (axis, size) in enumerate(zip(self.axes, sizes, strict=True)):
            starts[self.first + i], kept[self.first + i], ends[self.first + i] = axis.before, size, -axis.after
        if any(axis.longer for axis in self.axes):
            return e.pad(x, [-n for n in starts], ends)
        return e.slices(x, starts, kept)

    def by_groups(self, w: e.Tensor) -> e.Tensor:
        """The filter by groups."""
        return e.reshape(w, (self.groups, w.dims[0] // self.groups, *w.dims[1:]))

    def weights(self, w: e.Tensor) -> e.Tensor:
        """The filter as it is read: where channels come last, filters do."""
        w = self.by_groups(w)
        return e.transpose(w, (*range(3, w.rank), 2, 0, 1)) if self.last else w

    def correlate(self, x: e.Tensor, w: e.Tensor) -> e.Tensor:
        """The windows of an image times the filter."""
        columns, windows, taps = self.letters()
        made = e.contract(self.columns(e.wide(x)), self.weights(e.wide(w)), f"{columns},{taps}->{windows}")
        return self.ungrouped(made)

    def spread(self, y: e.Tensor, w: e.Tensor, sizes: Sequence[e.Number]) -> e.Tensor:
        """Windows sent back through the filter, to an image of these spatial dims: the adjoint of that.

        Where they begin side by side the elements of the image are windows of them, times the filter turned around.
        """
        if all(axis.stride == 1 for axis in self.axes):
            turned = self.by_groups(e.flip(e.wide(w), range(2, w.rank)))
            turned = e.transpose(turned, (0, 2, 1, *range(3, turned.rank)))
            rows = [
                axis._replace(before=axis.reach - 1 - axis.before, after=size - count + axis.before)
                for axis, size, count in zip(self.axes, sizes, self.split(y.dims)[2], strict=True)
            ]
            back = self._replace(axes=tuple(rows))
            flat = e.reshape(turned, (turned.dims[0] * turned.dims[1], *turned.dims[2:]))
            return back.correlate(y, flat)
        columns, windows, taps = self.letters()
        made = e.contract(self.grouped(e.wide(y)), self.weights(e.wide(w)), f"{windows},{taps}->{columns}")
        return self.ungrouped(self.image(made, sizes))

    def filter(self, x: e.Tensor, y: e.Tensor, w: e.Tensor) -> e.Tensor:
        """The sums of the windows of an image times tensors of the windows' dims, which are those of a filter."""
        columns, windows, taps = self.letters()
        made = e.contract(self.columns(e.wide(x)), self.grouped(e.wide(y)), f"{columns},{windows}->{taps}")
        if self.last:
            made = e.transpose(made, (made.rank - 2, made.rank - 1, made.rank - 3, *range(self.spatial)))
        return e.reshape(made, w.dims)


def geometry(
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
) -> Geometry:
    """The windows of a call.

    Raises Refused unless Input and Filter have the rank, one dtype, and no dim of 0, and lists of numbers their
    length.
    """
    last = data_format in ("NHWC", "NDHWC")
    order = "[N, H, W, C]" if last else "[N, C, H, W]"
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
    steps, apart = e.per_dim("strides", strides, spatial), e.per_dim("dilations", dilations, spatial)
    explicit = explicit_pads(paddings, spatial)
    if padding_algorithm == "VALID":
        explicit = [(0, 0)] * spatial
    axes = []
    for i, (taps, step, gap, pads) in enumerate(zip(w.dims[2:], steps, apart, explicit, strict=True)):
        if padding_algorithm == "SAME":
            size = x.dims[i + (1 if last else 2)]
            axes.append(Axis(taps, step, 1, *same_pads(size, taps, step)))
        else:
            axes.append(Axis(taps, step, gap, e.number(pads[0]), e.number(pads[1])))
    return Geometry(tuple(axes), groups, last)
