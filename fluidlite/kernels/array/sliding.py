"""Windows that slide over arrays, for the pooling kernels.

Windows are products of windows along each axis, so an axis is reduced at a time. Along one, the windows' first
elements are a strided view of X, and so are their second ones: a step over a few views (taps) makes all windows at
once, in blocks that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import Any, NamedTuple

from fluidlite.plugin import Call, Context, PoolAxis, pool_axes, pool_planes

from .common import immediate, numpy_style

BLOCK = 65536
"""Elements of X that are worked on at a time, on the host."""

LONG = 8
"""Windows along one axis of so many elements, side by side, are reduced each as a whole."""

FEW = 32
"""Windows of so many elements are looked through one by one, on the host; those of more, axis by axis."""

Part = tuple[Any, ...]


class Line(NamedTuple):
    """Windows along one axis of the arrays.

    Attributes
    ----------
    axis : int
        Which.
    size, outs : int
        Its length before and after.
    cuts : list of (windows, elements)
        The k-th element of every window that has one, k ascending: as slices of the axis after and before.
    taps : list of (windows, elements)
        The same, as parts of the arrays.
    lead : list of those that reach every window
    single : the only window, if there is one
    disjoint, covering : bool
        Whether no element lies in two windows; whether each lies in one.
    widths : list of int
        How many elements of X each window has.
    tile : int
        The windows' size where they are equal, many elements each, and side by side cover the axis; else 0.
    spans : list of (window, elements)
        Windows of sizes that differ, as parts of the arrays, which are then taken one by one.
    """

    axis: int
    size: int
    outs: int
    cuts: list[tuple[slice, slice]]
    taps: list[tuple[Part, Part]]
    lead: list[tuple[Part, Part]]
    single: Part | None
    disjoint: bool
    covering: bool
    widths: list[int]
    tile: int
    spans: list[tuple[Part, Part]]

    def tiled(self, dims: Sequence[int]) -> tuple[int, ...]:
        """The dims with the axis split into windows and their elements."""
        return (*dims[: self.axis], self.outs, self.tile, *dims[self.axis + 1 :])


def line_of(axis: PoolAxis, position: int) -> Line:
    """Work out the taps of the windows along an axis of the arrays."""
    axis = axis.regular
    windows, size, count, step = axis.windows(), axis.size, axis.outs, axis.stride
    before: Part = (slice(None),) * position

    cuts = []
    if axis.adaptive:
        cuts = [(slice(o, o + 1), slice(i, i + 1)) for o, (a, b) in enumerate(windows) for i in range(a, b)]
    else:
        for k in range(axis.kernel):
            shift = k - axis.before
            first, last = max(0, -(shift // step)), min(count - 1, (size - 1 - shift) // step)
            if first <= last:
                ins = slice(first * step + shift, last * step + shift + 1, step)
                cuts.append((slice(first, last + 1), ins))
    taps = [((*before, outs, ...), (*before, ins, ...)) for outs, ins in cuts]
    return Line(
        axis=position, size=size, outs=count, cuts=cuts, taps=taps,
        lead=[each for each in taps if each[0][position] == slice(0, count)],
        single=(*before, slice(*windows[0]), ...) if count == 1 and windows[0][0] < windows[0][1] else None,
        disjoint=all(b <= a for (_, b), (a, _) in pairwise(windows)),
        covering=len({i for a, b in windows for i in range(a, b)}) == size,
        widths=[b - a for a, b in windows],
        tile=axis.kernel if LONG <= axis.kernel == step and axis.kernel * count == size and not axis.before else 0,
        spans=[((*before, slice(o, o + 1), ...), (*before, slice(a, b), ...)) for o, (a, b) in enumerate(windows)]
        if axis.adaptive and size > 2 * count else [],
    )  # fmt: skip


class Plan:
    """The axes of a call, and how its arrays are cut into blocks.

    Arrays are seen as [outer, spatial dims..., channels if they come last]. Windows that are all of X are one axis.
    ``grid`` has, on the host and where they are few, the taps of all axes together: the elements of a window in order.
    """

    def __init__(self, call: Call, context: Context) -> None:
        axes = pool_axes(call)
        outer, inner = pool_planes(call)
        tail = (inner,) if inner != 1 else ()
        if all(axis.outs == 1 and axis.regular.kernel == axis.size and not axis.before for axis in axes):
            size = prod(axis.size for axis in axes)
            axes = (PoolAxis(size, 1, size, 1, 0, False),)
        self.tail = tail
        self.axes = tuple(axis.regular for axis in axes)
        self.space = tuple(axis.size for axis in axes)
        self.x = (outer, *self.space, *tail)
        self.out = (outer, *(axis.outs for axis in axes), *tail)
        lines = [line_of(axis, i + 1) for i, axis in enumerate(axes)]
        self.widths = [line.widths for line in lines]
        # an axis whose windows are its elements needs nothing
        self.lines = [line for line in lines if line.size != line.outs or line.taps != line.lead or len(line.taps) != 1]
        few = prod(max(len(line.cuts), 1) for line in lines) <= FEW and immediate(context)
        few = few and not any(axis.adaptive for axis in self.axes)
        self.grid = [self._cell(cell) for cell in product(*(line.cuts for line in lines))] if few else []
        step = max(1, BLOCK // max(1, prod(self.x[1:]))) if immediate(context) else outer
        self.blocks = [slice(at, min(at + step, outer)) for at in range(0, outer, max(step, 1))]

    @staticmethod
    def _cell(cuts: Sequence[tuple[slice, slice]]) -> tuple[Part, Part]:
        return (slice(None), *(outs for outs, _ in cuts), ...), (slice(None), *(ins for _, ins in cuts), ...)

    def counts(self, xp: Any, dtype: Any, kernel: int) -> Any:
        """What a mean divides by: ``kernel`` unless 0, else the elements of each window."""
        if kernel:
            return kernel
        each = {width for line in self.widths for width in line}
        if all(len(set(line)) == 1 for line in self.widths) and each:
            return prod(line[0] for line in self.widths)
        total = xp.ones((1,) * len(self.x), dtype=dtype)
        for axis, line in enumerate(self.widths):
            dims = tuple(len(line) if i == axis + 1 else 1 for i in range(len(self.x)))
            total = total * xp.reshape(xp.asarray(line, dtype=dtype), dims)
        return total

    def voids(self) -> Iterator[Part]:
        """Parts of Out whose windows lie in the padding."""
        for axis, line in enumerate(self.widths):
            for o, width in enumerate(line):
                if not width:
                    yield (*(slice(None),) * (axis + 1), slice(o, o + 1), ...)


class Steps:
    """The few operations that the kernels are made of, with ``out=`` where the namespace has it."""

    def __init__(self, context: Context) -> None:
        self.xp = context.xp
        self.out = numpy_style(context)

    def into(self, function: Any, a: Any, b: Any, target: Any, part: Any = ...) -> None:
        """``target[part] = function(a, b)``."""
        if self.out:
            function(a, b, out=target[part])
        else:
            target[part] = function(a, b)

    def slide(self, x: Any, y: Any, line: Line, function: Any, whole: Any, start: float) -> None:
        """Reduce one axis of x into y."""
        if line.single is not None:
            if self.out:
                whole(x[line.single], axis=line.axis, keepdims=True, out=y)
            else:
                y[...] = whole(x[line.single], axis=line.axis, keepdims=True)
            return
        if line.tile:
            parts = self.xp.reshape(x, line.tiled(x.shape))
            if self.out:
                whole(parts, axis=line.axis + 1, out=y)
            else:
                y[...] = whole(parts, axis=line.axis + 1)
            return
        if line.spans:
            for outs, ins in line.spans:
                if self.out:
                    whole(x[ins], axis=line.axis, keepdims=True, out=y[outs])
                else:
                    y[outs] = whole(x[ins], axis=line.axis, keepdims=True)
            return
        done = line.lead[:2]
        if len(done) == 2:
            self.into(function, x[done[0][1]], x[done[1][1]], y)
        else:
            y[...] = x[done[0][1]] if done else start
        for outs, ins in line.taps:
            if (outs, ins) not in done:
                self.into(function, y[outs], x[ins], y, outs)

    def spread(self, y: Any, x: Any, line: Line) -> None:
        """Give each element of x the sum of the windows in y that it lies in."""
        if line.single is not None:
            if not line.covering:
                x[...] = 0.0
            x[line.single] = y
            return
        if not (line.disjoint and line.covering):
            x[...] = 0.0
        for outs, ins in line.spans or line.taps:
            if line.disjoint:
                x[ins] = y[outs]
            else:
                self.into(self.xp.add, x[ins], y[outs], x, ins)


def levels_of(plan: Plan, order: Sequence[Line], rows: int) -> list[tuple[int, ...]]:
    """Dims of the block before and after each axis of ``order`` is reduced."""
    dims = [(rows, *plan.x[1:])]
    for line in order:
        dims.append((*dims[-1][: line.axis], line.outs, *dims[-1][line.axis + 1 :]))
    return dims
